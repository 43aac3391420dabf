"""Automatic Recall Machines (Ji, Henriques, Tuytelaars and Vedaldi 2020), Algorithm 1.

After a step on the real batch, the student and its earlier copy (the teacher) find inputs on which they disagree most,
and the student learns the teacher's answers on them. No image is kept, no generator trained.
MNIST-5k, seeds 0-4: accuracy 57.0 ± 2.1, forgetting 19.2 ± 2.7 (paper 56.3 ± 2.6, 21.8 ± 1.6).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..ascent import SideBySide, ascend, forward
from ..distinct import obstacle
from ..errors import ConfigError, InputError
from ..objectives import soft_cross_entropy
from ..recall import TERMS, RecallConfig, Recalled, initial_images, recall
from ..settings import check_counts, check_not_negative, check_positive
from .base import Learner, finite
from .teacher import LagConfig, TaughtLearner


@dataclass(frozen=True)
class ARMConfig(RecallConfig):
    """Automatic Recall Machines. Defaults are the paper's values for MNIST."""

    method: ClassVar[str] = "arm"

    learning_rate: float = 0.05
    """η0, the rate of both SGD steps."""

    recalled_weight: float = 1.0
    """λ0 of the recalled images in the learning step."""

    real_weight: float = 1.0
    """λ0 of the real batch in the learning step; 0 is the paper's "no distill"."""

    targets: Literal["soft", "hard"] = "soft"
    """What the teacher says of a recalled image: its softmax outputs, or its most probable class alone."""

    repeats: int = 1
    """How often recall and learning are done per batch, each going on from the images found before."""

    accumulate_repeats: bool = False
    """Published form of repeats: gradients are not cleared between them, so repeat r steps along g₁ + … + g_r."""

    lag: LagConfig = field(default_factory=LagConfig)
    """When the teacher becomes a fresh copy of the student."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "learner", "learning_rate")
        check_not_negative(self, "learner", "recalled_weight", "real_weight")
        check_counts(self, "learner", "repeats")
        if self.recalled_weight == 0 and self.real_weight == 0:
            raise ConfigError("learner.recalled_weight and learner.real_weight are both 0; expected one above 0")

    def build(self, network: nn.Module, seed: int, task_lengths: tuple[int, ...]) -> Learner:
        """The learner of a run, its lag taken from the stream."""
        return ARM(network, replace(self, lag=self.lag.for_stream(task_lengths)), seed=seed)


@dataclass(frozen=True)
class Recollection:
    """One recalled batch with the teacher's answers, for those who want to look at it."""

    recalled: Recalled
    targets: Tensor
    """The teacher's probabilities for each distinct image."""


class ARM(TaughtLearner):
    """Learn, recall, learn again."""

    def __init__(
        self,
        network: nn.Module,
        config: ARMConfig | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        seed: int = 0,
    ) -> None:
        self.config = config or ARMConfig()
        super().__init__(network, self.config.lag, self.config.learning_rate, optimizer, seed)
        self._channels_last = self._channels_last and self.config.engine == "fast"
        self.side_by_side = SideBySide()
        self.on_recall: Callable[[Recollection], None] | None = None
        """Called with every recalled batch. The learner itself keeps none: it holds no image between two batches."""
        self._said_why = False

    def check(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Refuse what recall cannot use either."""
        x, y = super().check(x, y)
        weight = self.config.total_variation
        if x.dim() != 4 and weight > 0:
            raise InputError(
                f"learner.total_variation is {weight} but inputs have shape {tuple(x.shape[1:])}, not "
                "(channels, height, width); set it to 0, or give images as images"
            )
        if self.config.images == 1:
            self._check_single(x, "learner.images=1")
        return x, y

    def learn(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """One round of Algorithm 1."""
        config = self.config
        teacher = self.teacher.follow(self.network, y)
        numbers = {"loss": self.descend(F.cross_entropy(self.network(x), y), "the loss on the real batch")}
        if teacher is None:
            return numbers | self._nothing_recalled()

        reason = obstacle(self.network)
        # A network that draws random numbers would draw them in a race; an accelerator has a queue of its own.
        self.side_by_side.wanted = config.side_by_side and reason is None and x.device.type == "cpu"
        present = torch.unique(y)
        recalled = initial_images(x, config, self.generator, self._keeps_copies(len(x), reason))
        for repeat in range(config.repeats):
            if config.engine == "plain":
                recalled, terms = recall(self.network, teacher, recalled, present, config)
            else:
                recalled, terms = ascend(
                    self.network, teacher, recalled, present, self.classes, config, self.side_by_side
                )
            keep_gradients = config.accumulate_repeats and repeat > 0
            losses, targets = self._learn_from(recalled, x, teacher, keep_gradients)
            numbers |= terms | losses | self._class_history((recalled.weights @ targets).tolist())
            if self.on_recall is not None:
                self.on_recall(Recollection(recalled, targets))
        return numbers

    def _learn_from(
        self, recalled: Recalled, x: Tensor, teacher: nn.Module, keep_gradients: bool
    ) -> tuple[dict[str, float], Tensor]:
        """Line 9 of Algorithm 1, as published: the sum of two means, each batch going through the network by itself."""
        config = self.config
        batches = [(recalled.images, recalled.multiplicities)] + ([(x, None)] if config.real_weight else [])
        logits, answers = self.side_by_side.both(
            partial(_outputs, self.network, batches), partial(_answers, teacher, batches)
        )
        targets = answers[0]
        learned = F.one_hot(targets.argmax(1), targets.shape[1]).to(targets) if config.targets == "hard" else targets
        losses = [config.recalled_weight * soft_cross_entropy(logits[0], learned, recalled.weights)]
        losses += [config.real_weight * soft_cross_entropy(logits[1], answers[1])] if config.real_weight else []
        values = [finite(losses[0], "the loss on recalled images")]
        values += [finite(loss, "the distillation loss on the real batch") for loss in losses[1:]]
        self._descend_together(losses, keep_gradients)
        return {"recalled_loss": values[0], "distillation": values[1] if config.real_weight else math.nan}, targets

    def _descend_together(self, losses: list[Tensor], keep_gradients: bool) -> None:
        """One optimizer step down the sum of losses."""
        if not keep_gradients:
            self._clear_gradients()
        if len(losses) == 2 and not keep_gradients:
            # Their graphs share nothing but parameters, and a sum of two does not depend on which comes first.
            self.side_by_side.both(losses[0].backward, losses[1].backward)
        else:
            for loss in losses:
                loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def _keeps_copies(self, count: int, reason: str | None) -> bool:
        """Whether each copy of a real image is run by itself. With M ≤ N, or from noise, there are none."""
        config = self.config
        if config.copies != "auto" or config.initial == "noise" or config.images <= count:
            return config.copies == "keep"
        if reason is not None and not self._said_why:
            self._said_why = True
            warnings.warn(
                f"recall keeps all {config.images} copies, which takes longer: {reason} is not known to treat copies "
                "of an image alike; if it does, set treats_images_alone = True on its class, or copies='collapse'",
                stacklevel=4,
            )
        return reason is not None

    def _class_history(self, mean_teacher_outputs: list[float]) -> dict[str, float]:
        return {f"recalled_class_{label}": share for label, share in enumerate(mean_teacher_outputs)}

    def _nothing_recalled(self) -> dict[str, float]:
        names = (*TERMS, "objective", "recalled_loss", "distillation")
        return dict.fromkeys(names, math.nan) | self._class_history([math.nan] * self.classes)


Batch: TypeAlias = tuple[Tensor, Tensor | None]  # inputs, and how often each occurs where that differs


def _outputs(network: nn.Module, batches: list[Batch]) -> list[Tensor]:
    return [forward(network, images, counts) for images, counts in batches]


@torch.no_grad()
def _answers(teacher: nn.Module, batches: list[Batch]) -> list[Tensor]:
    return [logits.softmax(1) for logits in _outputs(teacher, batches)]
