"""Adaptive DeepInversion (Yin et al. 2020), as the paper compares with it: recalled images are told what to show.

As ARM, but for what is looked for: every image is given an earlier class, and becomes what the teacher takes for it,
with batch statistics such as the teacher remembers (where it has batch-norm), and student and teacher at odds.
MNIST-5k, seeds 0-4: accuracy 59.7 ± 3.2, forgetting 6.7 ± 3.6 (paper 55.4 ± 2.6, 11.5 ± 5.0).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..ascent import forward
from ..distinct import WEIGHTED
from ..objectives import divergence, l2_norm, total_variation, weighted_mean
from ..recall import Recalled, choose, initial_images, per_image
from ..settings import check_not_negative
from .base import Learner, finite
from .recalling import RecallingConfig, RecallLearner


@dataclass(frozen=True)
class ADIConfig(RecallingConfig):
    """Adaptive DeepInversion. Defaults are the published values for MNIST."""

    method: ClassVar[str] = "adi"

    real_weight: float = 0.5
    """λ0 of the real batch in the learning step; 0 is the paper's "no distill"."""

    class_loss: float = 1.0
    """Weight of the teacher's cross-entropy to the class that an image is to show."""

    divergence: float = 1.0
    """Weight of D, by which student and teacher are to be at odds."""

    batch_statistics: float = 0.0
    """Weight of the distance between batch statistics and the running ones of the teacher's batch-norm layers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self, "learner", "class_loss", "divergence", "batch_statistics")

    def build(self, network: nn.Module, seed: int, task_lengths: tuple[int, ...]) -> Learner:
        """The learner of a run, its lag taken from the stream."""
        return ADI(network, replace(self, lag=self.lag.for_stream(task_lengths)), seed=seed)


@dataclass(frozen=True)
class Aimed(Recalled):
    """A batch of images each of which is to show a class."""

    classes: Tensor
    """The class of each distinct image; an image that is to show two classes stands twice."""


class ADI(RecallLearner):
    """Recall images of earlier classes."""

    config: ADIConfig
    terms = ("class_loss", "divergence", "l2_norm", "total_variation", "batch_statistics")

    def __init__(
        self,
        network: nn.Module,
        config: ADIConfig | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(network, config or ADIConfig(), optimizer, seed)

    def start(self, x: Tensor, present_classes: Tensor, keep_copies: bool) -> Aimed | None:
        """Real images, each with a class that was seen before and is not present.

        None where there is no such class: then the batch is learned by its labels alone.
        """
        absent = torch.tensor(sorted(self.boundaries.earlier_classes - set(present_classes.tolist())))
        if len(absent) == 0:
            return None
        images = initial_images(x, self.config, self.generator, keep_copies=True)
        classes = absent[choose(len(absent), self.config.images, self.generator)]
        if images.origins is None or keep_copies:
            return Aimed(images.images, images.counts, images.origins, classes.to(x.device))
        # Copies of one image move alike only if they are to show the same class.
        pairs, counts = torch.unique(torch.stack([images.origins, classes], dim=1), dim=0, return_counts=True)
        origins, classes = pairs.unbind(1)
        return Aimed(x[origins.to(x.device)], counts.to(x.device), origins, classes.to(x.device))

    def recall(
        self, recalled: Recalled, present_classes: Tensor, teacher: nn.Module
    ) -> tuple[Recalled, dict[str, float]]:
        """S steps down the loss of a batch, teacher and student side by side; their graphs meet at the logits."""
        assert isinstance(recalled, Aimed)
        config, images, counts = self.config, recalled.images.detach(), recalled.multiplicities
        for _ in range(config.steps):
            ours, theirs = images.detach().requires_grad_(), images.detach().requires_grad_()
            student_logits, (teacher_logits, statistics) = self.side_by_side.both(
                partial(forward, self.network, ours, counts), partial(self._ask, teacher, theirs, recalled)
            )
            s, t, x = (tensor.detach().requires_grad_() for tensor in (student_logits, teacher_logits, images))
            terms = self._terms(s, t, x, recalled) | {"batch_statistics": statistics.detach()}
            loss = self._loss(terms)
            if not bool(loss.isfinite()):
                break
            at_student, at_teacher, at_images = torch.autograd.grad(
                loss + 0 * x.sum(), (s, t, x), allow_unused=True, materialize_grads=True
            )
            # Of the terms, batch statistics alone arise inside the teacher; they may be the only one.
            outputs = (teacher_logits, statistics) if statistics.requires_grad else (teacher_logits,)
            gradients = (at_teacher, torch.full_like(statistics, config.batch_statistics))[: len(outputs)]
            by_teacher, by_student = self.side_by_side.both(
                partial(torch.autograd.grad, outputs, theirs, gradients),
                partial(torch.autograd.grad, student_logits, ours, at_student),
            )
            gradient = by_student[0] + by_teacher[0] + at_images
            images = images - config.recall_rate * gradient / per_image(recalled.counts, images)
        return replace(recalled, images=images), self._values(terms)

    def _terms(self, student_logits: Tensor, teacher_logits: Tensor, images: Tensor, aimed: Aimed) -> dict[str, Tensor]:
        """What depends on logits and images alone, unweighted."""
        off_target = F.cross_entropy(teacher_logits, aimed.classes, reduction="none")
        terms = {
            "class_loss": weighted_mean(off_target, aimed.weights),
            "divergence": divergence(student_logits, teacher_logits, aimed.weights),
            "l2_norm": l2_norm(images, aimed.weights),
        }
        return terms | ({"total_variation": total_variation(images, aimed.weights)} if images.dim() == 4 else {})

    def _loss(self, terms: dict[str, Tensor]) -> Tensor:
        """What is made small; D is made large. Terms of weight 0 are left out, so that they cannot spoil it."""
        weights = {name: getattr(self.config, name) * (-1 if name == "divergence" else 1) for name in self.terms}
        parts = [weight * terms[name] for name, weight in weights.items() if weight and name in terms]
        return torch.stack(parts).sum() if parts else 0 * terms["l2_norm"]

    def _values(self, terms: dict[str, Tensor]) -> dict[str, float]:
        values = {name: float(terms[name].detach()) if name in terms else math.nan for name in self.terms}
        return values | {"objective": -finite(self._loss(terms), "the loss of inversion")}

    def _ask(self, teacher: nn.Module, images: Tensor, aimed: Aimed) -> tuple[Tensor, Tensor]:
        """The teacher's logits, and how far the statistics of the batch are from those it remembers."""
        if not self.config.batch_statistics:
            return forward(teacher, images, aimed.multiplicities), images.new_zeros(())
        with statistics_of(teacher, aimed) as distances:
            logits = forward(teacher, images, aimed.multiplicities)
        return logits, torch.stack(distances).mean() if distances else images.new_zeros(())


@contextmanager
def statistics_of(network: nn.Module, batch: Recalled) -> Iterator[list[Tensor]]:
    """Inside, every pass of this batch adds, for each batch-norm layer, |batch mean − running mean|₂ +
    |batch variance − running variance|₂, read before the pass moves the running statistics; variances are unbiased."""
    distances: list[Tensor] = []

    def read(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        (x,) = inputs
        values, shares = x.reshape(*x.shape[:2], -1), batch.weights.to(x)
        count = batch.total * values.shape[2]
        mean = torch.tensordot(shares, values.mean(2), dims=1)
        spread = (values - mean[:, None]).square().mean(2)
        variance = torch.tensordot(shares, spread, dims=1) * (count / max(count - 1, 1))
        running_mean, running_variance = layer.get_buffer("running_mean"), layer.get_buffer("running_var")
        distances.append((mean - running_mean).norm() + (variance - running_variance).norm())

    layers = [m for m in network.modules() if isinstance(m, WEIGHTED) and m.running_mean is not None]
    handles = [layer.register_forward_pre_hook(read) for layer in layers]
    try:
        yield distances
    finally:
        for handle in handles:
            handle.remove()
