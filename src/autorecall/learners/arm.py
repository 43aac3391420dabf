"""Automatic Recall Machines (Ji, Henriques, Tuytelaars and Vedaldi 2020), Algorithm 1.

After a step on the real batch, the student and its earlier copy (the teacher) find inputs on which they disagree most,
and the student learns the teacher's answers on them. No image is kept, no generator trained.
MNIST-5k, seeds 0-4: MEASURED_ARM (paper 56.3 ± 2.6, forgetting 21.8 ± 1.6); see docs/results.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import ConfigError, InputError
from ..objectives import soft_cross_entropy
from ..recall import TERMS, RecallConfig, initial_images, recall
from .base import Learner
from .settings import not_negative, positive
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
        positive(learning_rate=self.learning_rate)
        not_negative(recalled_weight=self.recalled_weight, real_weight=self.real_weight)
        if self.recalled_weight == 0 and self.real_weight == 0:
            raise ConfigError("learner.recalled_weight and learner.real_weight are both 0; expected one above 0")
        if self.repeats < 1:
            raise ConfigError(f"learner.repeats is {self.repeats}; expected at least 1")

    def build(self, network: nn.Module, seed: int, task_lengths: tuple[int, ...]) -> Learner:
        """The learner of a run, its lag taken from the stream."""
        return ARM(network, replace(self, lag=self.lag.for_stream(task_lengths)), seed=seed)


@dataclass(frozen=True)
class Recollection:
    """One recalled batch with the teacher's answers, for those who want to look at it."""

    images: Tensor
    origins: Tensor | None
    """Which image of the real batch each one started as; None for noise."""
    targets: Tensor
    """The teacher's probabilities."""


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
        self.on_recall: Callable[[Recollection], None] | None = None
        """Called with every recalled batch. The learner itself keeps none: it holds no image between two batches."""

    def learn(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """One round of Algorithm 1."""
        config = self.config
        if x.dim() != 4 and config.total_variation > 0:
            raise InputError(
                f"learner.total_variation is {config.total_variation} but inputs have shape {tuple(x.shape[1:])}, not "
                "(channels, height, width); set it to 0, or give images as images"
            )
        teacher = self.teacher.follow(self.network, y)
        numbers = {"loss": self.descend(F.cross_entropy(self.network(x), y), "the loss on the real batch")}
        if teacher is None:
            return numbers | self._nothing_recalled()

        images, origins = initial_images(x, config, self.generator)
        for repeat in range(config.repeats):
            recalled = recall(self.network, teacher, images, torch.unique(y), config)
            images = recalled.images
            keep_gradients = config.accumulate_repeats and repeat > 0
            losses, targets = self._learn_from(images, x, teacher, keep_gradients)
            numbers |= recalled.terms | losses | self._class_history(targets.mean(0).tolist())
            if self.on_recall is not None:
                self.on_recall(Recollection(images, origins, targets))
        return numbers

    def _learn_from(
        self, images: Tensor, x: Tensor, teacher: nn.Module, keep_gradients: bool
    ) -> tuple[dict[str, float], Tensor]:
        """Line 9 of Algorithm 1, as published: the sum of two means, each batch going through the network by itself."""
        config = self.config
        with torch.no_grad():
            targets = teacher(images).softmax(1)
        learned = F.one_hot(targets.argmax(1), targets.shape[1]).to(targets) if config.targets == "hard" else targets
        recalled_loss = soft_cross_entropy(self.network(images), learned)
        loss, real = config.recalled_weight * recalled_loss, math.nan
        if config.real_weight:
            with torch.no_grad():
                real_targets = teacher(x).softmax(1)
            real_loss = soft_cross_entropy(self.network(x), real_targets)
            loss, real = loss + config.real_weight * real_loss, float(real_loss.detach())
        self.descend(loss, "the loss on recalled images", keep_gradients)
        return {"recalled_loss": float(recalled_loss.detach()), "distillation": real}, targets

    def _class_history(self, mean_teacher_outputs: list[float]) -> dict[str, float]:
        return {f"recalled_class_{label}": share for label, share in enumerate(mean_teacher_outputs)}

    def _nothing_recalled(self) -> dict[str, float]:
        names = (*TERMS, "objective", "recalled_loss", "distillation")
        return dict.fromkeys(names, math.nan) | self._class_history([math.nan] * self.classes)
