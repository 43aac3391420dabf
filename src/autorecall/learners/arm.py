"""Automatic Recall Machines (Ji, Henriques, Tuytelaars and Vedaldi 2020), Algorithm 1.

After a step on the real batch, the student and its earlier copy (the teacher) find inputs on which they disagree most,
and the student learns the teacher's answers on them. No image is kept and no generator trained.
MNIST-5k, seeds 0-4: accuracy 57.9 ± 3.2, forgetting 28.1 ± 3.2 (paper 56.3 ± 2.6, 21.8 ± 1.6).
CIFAR10, seeds 0-2: accuracy 26.2 ± 1.3, forgetting 7.6 ± 3.8 (paper 26.4 ± 1.2, 8.07 ± 5.2).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer

from ..checks import check_not_negative
from ..errors import ConfigError
from ..recall.batch import Aimed, Recalled, initial_images
from ..recall.objective import REGULARISERS, TERMS, Inversion, Objective, disagreement
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

    told: bool = False
    """Not in the paper: tell each image an earlier class to show, as in ADI. The ascent then minimises the teacher's
    cross-entropy for it, in place of avoidance, diversity and uncertainty; see also targets and initial."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self, "learner", *TERMS)
        for name, choice in (("targets", "told"), ("initial", "shift")):
            if getattr(self, name) == choice and not self.told:
                raise ConfigError(
                    f"learner.{name} is {choice} but recalled images are told no class; set learner.told, "
                    f"or leave {name} out"
                )

    def weights(self) -> dict[str, float]:
        """The signed weight of every term in the objective; penalties are negative."""
        if self.told:
            penalties = {"l2_norm": -self.l2_norm, "total_variation": -self.total_variation}
            return {"class_loss": -1.0, "divergence": self.divergence} | penalties
        return {name: -getattr(self, name) if name in REGULARISERS else getattr(self, name) for name in TERMS}

    def build(self, network: nn.Module, seed: int) -> Learner:
        """The learner for a run."""
        return ARM(network, self, seed=seed)


class ARM(RecallLearner):
    """Recall what student and teacher disagree on most."""

    config: ARMConfig

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

    def start(self, x: Tensor, y: Tensor, keep_copies: bool) -> Recalled | None:
        """Images of the real batch, or noise; with a class to show, if they are told one."""
        if self.config.told:
            return self.aimed_images(x, y, keep_copies)
        return initial_images(x, self.config.recalled_images, self.config.initial, self.generator, keep_copies)

    def objective(self, start: Recalled, present_classes: Tensor) -> Objective:
        """The recall objective (equation 8), or that of images with a class to show."""
        if isinstance(start, Aimed):
            return Inversion(start, self.config.weights(), self.config.divergence_form)
        return disagreement(start, self.config.weights(), present_classes, self.config.divergence_form, self.classes)
