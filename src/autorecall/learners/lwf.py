"""Learning without Forgetting (Li and Hoiem 2017), the paper's Distill: keep the teacher's answers on the real batch.

A step on the real batch, then, from the second task on, one on KL(teacher‖student) of the same batch: ARM without
recalled images.
MNIST-5k, seeds 0-4: accuracy 29.2 ± 2.0, forgetting 69.4 ± 2.0 (paper 33.3 ± 2.5, 58.0 ± 1.7).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from ..checks import check_positive
from .base import Learner, LearnerConfig
from .shared.teacher import LagConfig, TaughtLearner


@dataclass(frozen=True)
class LwFConfig(LearnerConfig):
    """Learning without Forgetting, the paper's Distill (LwF)."""

    method: ClassVar[str] = "lwf"

    learning_rate: float = 0.05
    """η0, the rate of both SGD steps."""

    weight: float = 1.0
    """Weight of the distillation loss."""

    lag: LagConfig = field(default_factory=LagConfig)
    """When the teacher becomes a fresh copy of the student."""

    def __post_init__(self) -> None:
        check_positive(self, "learner", "learning_rate", "weight")

    def build(self, network: nn.Module, seed: int) -> Learner:
        """The learner for a run."""
        return LwF(network, self, seed=seed)


class LwF(TaughtLearner):
    """Two SGD steps per batch: on its labels, then on the teacher's outputs for it."""

    def __init__(
        self,
        network: nn.Module,
        config: LwFConfig | None = None,
        optimizer: Optimizer | None = None,
        seed: int = 0,
        trained: bool | Iterable[int] = False,
    ) -> None:
        """`trained` says that the network knows all its classes already, or which: it is taught at once."""
        self.config = config or LwFConfig()
        super().__init__(network, self.config.lag, self.config.learning_rate, optimizer, seed, trained)

    def learn(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """A step on the labels, then a step on KL(teacher‖student)."""
        teacher = self.teacher.follow(self.network, y)
        numbers = {
            "loss": self.descend(F.cross_entropy(self.outputs(x), y), "the loss on the real batch"),
            "distillation": math.nan,
        }
        if teacher is not None:
            with torch.no_grad():
                targets = F.log_softmax(self.outputs(x, teacher), dim=1)
            outputs = F.log_softmax(self.outputs(x), dim=1)
            loss = F.kl_div(outputs, targets, reduction="batchmean", log_target=True)
            numbers["distillation"] = self.descend(self.config.weight * loss, "the distillation loss")
        return numbers
