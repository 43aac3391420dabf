"""Adaptive DeepInversion (Yin et al. 2020), as the paper compares with it: each recalled image has a class to show.

Like ARM except for the objective: every image is given an earlier class and pushed towards what the teacher sees as it,
with batch statistics close to the teacher's running ones (if it has batch-norm), while student and teacher disagree.
MNIST-5k, seeds 0-4: accuracy 59.8 ± 3.1, forgetting 6.8 ± 3.9 (paper 55.4 ± 2.6, 11.5 ± 5.0).
CIFAR10, seed 0: accuracy 23.9, forgetting 13.6 (paper 24.8 ± 0.9, 12.0 ± 4.5).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer

from ..checks import check_not_negative
from ..recall.batch import Aimed, Recalled
from ..recall.objective import Inversion, Objective
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


class ADI(RecallLearner):
    """Recall images of earlier classes."""

    config: ADIConfig

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

    def start(self, x: Tensor, y: Tensor, keep_copies: bool) -> Aimed | None:
        """Images with an earlier class to show."""
        return self.aimed_images(x, y, keep_copies)

    def objective(self, start: Recalled, present_classes: Tensor) -> Objective:
        """The inversion loss with its sign flipped."""
        assert isinstance(start, Aimed)
        return Inversion(start, self.config.weights())
