"""What learners that recall have in common, whatever they look for: ARM and ADI differ in their objective alone.

A step on the real batch, images found by teacher and student, and a step on the teacher's answers to them (lines 5-9 of
Algorithm 1).
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..ascent import SideBySide, forward
from ..distinct import obstacle
from ..errors import ConfigError, InputError
from ..objectives import soft_cross_entropy
from ..recall import AscentConfig, Recalled
from ..settings import check_counts, check_not_negative, check_positive
from .base import finite
from .teacher import LagConfig, TaughtLearner


@dataclass(frozen=True)
class RecallingConfig(AscentConfig):
    """How recalled images are learned from."""

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


@dataclass(frozen=True)
class Recollection:
    """One recalled batch with the teacher's answers, for those who want to look at it."""

    recalled: Recalled
    targets: Tensor
    """The teacher's probabilities for each distinct image."""


class RecallLearner(TaughtLearner):
    """Learn, recall, learn again. Subclasses say what recalled images start as, and what they become."""

    config: RecallingConfig
    terms: ClassVar[tuple[str, ...]]  # the numbers that `recall` returns

    def __init__(
        self,
        network: nn.Module,
        config: RecallingConfig,
        optimizer: torch.optim.Optimizer | None = None,
        seed: int = 0,
    ) -> None:
        self.config = config
        super().__init__(network, config.lag, config.learning_rate, optimizer, seed)
        self.side_by_side = SideBySide()
        self.on_recall: Callable[[Recollection], None] | None = None
        """Called with every recalled batch. The learner itself keeps none: it holds no image between two batches."""
        self._said_why = False

    @abstractmethod
    def start(self, x: Tensor, present_classes: Tensor, keep_copies: bool) -> Recalled | None:
        """What recalled images start as; None where there is nothing to recall."""

    @abstractmethod
    def recall(
        self, recalled: Recalled, present_classes: Tensor, teacher: nn.Module
    ) -> tuple[Recalled, dict[str, float]]:
        """Lines 6-8 of Algorithm 1: the images found, and the terms of the objective."""

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
            self.check_single(x, "learner.images=1")
        return x, y

    def learn(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """One round of Algorithm 1."""
        config = self.config
        teacher = self.teacher.follow(self.network, y)
        numbers = {"loss": self.descend(F.cross_entropy(self.network(x), y), "the loss on the real batch")}
        reason = obstacle(self.network)
        present = torch.unique(y)
        recalled = None if teacher is None else self.start(x, present, self._keeps_copies(len(x), reason))
        if teacher is None or recalled is None:
            return numbers | self._nothing_recalled()

        # A network that draws random numbers would draw them in a race; an accelerator has a queue of its own.
        self.side_by_side.wanted = config.side_by_side and reason is None and x.device.type == "cpu"
        for repeat in range(config.repeats):
            recalled, terms = self.recall(recalled, present, teacher)
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
        names = (*self.terms, "objective", "recalled_loss", "distillation")
        return dict.fromkeys(names, math.nan) | self._class_history([math.nan] * self.classes)


Batch: TypeAlias = tuple[Tensor, Tensor | None]  # inputs, and how often each occurs where that differs


def _outputs(network: nn.Module, batches: list[Batch]) -> list[Tensor]:
    return [forward(network, images, counts) for images, counts in batches]


@torch.no_grad()
def _answers(teacher: nn.Module, batches: list[Batch]) -> list[Tensor]:
    return [logits.softmax(1) for logits in _outputs(teacher, batches)]
