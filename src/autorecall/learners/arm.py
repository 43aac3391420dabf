"""Automatic Recall Machines (Ji, Henriques, Tuytelaars and Vedaldi 2020), Algorithm 1.

After a step on the real batch, the student and its earlier copy (the teacher) find inputs on which they disagree most,
and the student learns the teacher's answers on them. No image is kept and no generator trained.
MNIST-5k, seeds 0-4: accuracy 57.9 ± 3.2, forgetting 28.1 ± 3.2 (paper 56.3 ± 2.6, 21.8 ± 1.6).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer

from ..checks import check_not_negative
from ..recall.batch import Recalled, initial_images
from ..recall.objective import REGULARISERS, TERMS, Objective, disagreement
from ..recall.terms import DivergenceForm
from .base import Learner
from .shared.algorithm1 import RecallConfig, RecallLearner


@dataclass(frozen=True)
class ARMConfig(RecallConfig):
    """Automatic Recall Machines. Defaults are the paper's values for MNIST."""

    method: ClassVar[str] = "arm"

    divergence: float = 1.0
    """Weight of D, the disagreement between student and teacher."""

    divergence_form: DivergenceForm = "mixture-first"
    """Form of D: mixture-first is the published one, jensen-shannon the textbook's, cross-entropy the ablation's."""

    teacher_avoidance: float = 1.0
    """λ1, rewards inputs that the teacher assigns to no class of the real batch."""

    student_avoidance: float = 0.1
    """λ2, the same for the student."""

    diversity: float = 16.0
    """λ3, rewards batches that cover many classes."""

    uncertainty: float = 0.1
    """λ4, penalises inputs that the teacher is unsure of."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self, "learner", *TERMS)

    def weights(self) -> dict[str, float]:
        """The signed weight of every term in the objective; penalties are negative."""
        return {name: -getattr(self, name) if name in REGULARISERS else getattr(self, name) for name in TERMS}

    def build(self, network: nn.Module, seed: int) -> Learner:
        """The learner for a run."""
        return ARM(network, self, seed=seed)


class ARM(RecallLearner):
    """Recall what student and teacher disagree on most."""

    config: ARMConfig
    terms = TERMS

    def __init__(
        self,
        network: nn.Module,
        config: ARMConfig | None = None,
        optimizer: Optimizer | None = None,
        seed: int = 0,
        trained: bool | Iterable[int] = False,
    ) -> None:
        """`trained` says that the network knows all its classes already, or which: it recalls from the first batch."""
        super().__init__(network, config or ARMConfig(), optimizer, seed, trained)

    def start(self, x: Tensor, present_classes: Tensor, keep_copies: bool) -> Recalled:
        """Images of the real batch, or noise."""
        return initial_images(x, self.config.recalled_images, self.config.initial, self.generator, keep_copies)

    def objective(self, start: Recalled, present_classes: Tensor) -> Objective:
        """The recall objective (equation 7)."""
        return disagreement(start, self.config.weights(), present_classes, self.config.divergence_form, self.classes)
