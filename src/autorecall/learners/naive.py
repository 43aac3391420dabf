"""Naive SGD: one plain step per batch, nothing against forgetting. The paper's lower bound, and its stationary row.

MNIST-5k, seeds 0-4: accuracy 19.1 ± 0.2 (paper 18.8 ± 0.5), stationary 86.5 ± 1.8 (paper 87.1 ± 0.6).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from ..checks import check_positive
from .base import Learner, LearnerConfig


@dataclass(frozen=True)
class NaiveConfig(LearnerConfig):
    """Naive SGD."""

    method: ClassVar[str] = "naive"

    learning_rate: float = 0.05
    """η0, the rate of the SGD step."""

    def __post_init__(self) -> None:
        check_positive(self, "learner", "learning_rate")

    def build(self, network: nn.Module, seed: int) -> Learner:
        """The learner for a run."""
        return Naive(network, self, seed=seed)


class Naive(Learner):
    """One SGD step per batch."""

    def __init__(
        self, network: nn.Module, config: NaiveConfig | None = None, optimizer: Optimizer | None = None, seed: int = 0
    ) -> None:
        self.config = config or NaiveConfig()
        super().__init__(network, self.config.learning_rate, optimizer, seed)

    @property
    def is_its_network(self) -> bool:
        """Nothing else is kept."""
        return True

    def learn(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """One step on the cross-entropy of the real batch."""
        return {"loss": self.descend(F.cross_entropy(self.outputs(x), y), "the loss on the real batch")}
