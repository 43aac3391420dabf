"""Recall: inputs on which student and teacher disagree most, found by ascending the recall objective (equation 7).

`recall` is the plain form of lines 6-8 of Algorithm 1, the equations as they stand; `ascent` is the fast one. Both work
on distinct images with counts, which are all 1 where copies are kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from . import objectives
from .distinct import counted, distinct
from .errors import DivergedError
from .objectives import Divergence
from .settings import check_choices, check_counts, check_not_negative, check_positive

TERMS = (
    "divergence",
    "teacher_avoidance",
    "student_avoidance",
    "diversity",
    "uncertainty",
    "l2_norm",
    "total_variation",
)


@dataclass(frozen=True)
class AscentConfig:
    """How recalled images start and move, whatever the objective. Defaults are the paper's values for MNIST."""

    images: int = 10
    """M, the number of recalled images."""

    steps: int = 10
    """S, the number of steps of the ascent."""

    recall_rate: float = 25.0
    """η1, the rate of such a step. The objective is a mean, so one image moves by η1/M times its own gradient."""

    initial: Literal["real", "noise"] = "real"
    """What recalled images start as: images of the real batch, or uniform noise in [0, 1)."""

    l2_norm: float = 1.0
    """λ5, against large pixel values."""

    total_variation: float = 1.0
    """λ6, against rough images; must be 0 where inputs are not images (channels, height, width)."""

    copies: Literal["auto", "collapse", "keep"] = "auto"
    """Copies of one image are run once and counted (collapse), the same mathematics; auto keeps them if it must."""

    side_by_side: bool = True
    """Run teacher and student at once where a core is to spare; not worth it for networks of a few small layers."""

    def __post_init__(self) -> None:
        check_choices(self, "learner")
        check_counts(self, "learner", "images", "steps")
        check_positive(self, "learner", "recall_rate")
        check_not_negative(self, "learner", "l2_norm", "total_variation")


@dataclass(frozen=True)
class RecallConfig(AscentConfig):
    """The recall objective. Defaults are the paper's values for MNIST."""

    divergence: Divergence = "mixture-first"
    """D: mixture-first is the published form, jensen-shannon the textbook one, cross-entropy the ablation."""

    divergence_weight: float = 1.0
    """Weight of D."""

    teacher_avoidance: float = 1.0
    """λ1, for inputs that the teacher does not take for a class of the real batch."""

    student_avoidance: float = 0.1
    """λ2, the same for the student."""

    diversity: float = 16.0
    """λ3, for a batch that covers many classes."""

    uncertainty: float = 0.1
    """λ4, against inputs that the teacher is unsure of."""

    engine: Literal["fast", "plain"] = "fast"
    """fast: closed-form gradients, teacher and student side by side. plain: the equations as they stand, its oracle."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self, "learner", "divergence_weight", *TERMS[1:-2])

    def signed_weights(self) -> dict[str, float]:
        """The factor of every term in the objective; regularisers count against it."""
        return {
            "divergence": self.divergence_weight,
            "teacher_avoidance": self.teacher_avoidance,
            "student_avoidance": self.student_avoidance,
            "diversity": self.diversity,
            "uncertainty": -self.uncertainty,
            "l2_norm": -self.l2_norm,
            "total_variation": -self.total_variation,
        }


@dataclass(frozen=True)
class Recalled:
    """A recalled batch."""

    images: Tensor
    """The distinct recalled inputs."""

    counts: Tensor
    """How often each of them occurs; the counts add up to M."""

    origins: Tensor | None
    """Which image of the real batch each one started as; None for noise."""

    @property
    def total(self) -> int:
        """M, the images that the batch stands for."""
        return int(self.counts.sum())

    @property
    def weights(self) -> Tensor:
        """Their shares of the batch, counts / M."""
        return self.counts.to(self.images) / self.total

    @property
    def multiplicities(self) -> Tensor | None:
        """The counts where some image occurs more than once; None where every layer can work as it is."""
        return None if len(self.counts) == self.total else self.counts


def initial_images(x: Tensor, config: AscentConfig, generator: torch.Generator, keep_copies: bool) -> Recalled:
    """M starting points: images of the real batch or noise. Unless copies are kept, each image stands once."""
    if config.initial == "noise":
        return _noise(x, config, generator)
    origins = choose(len(x), config.images, generator)
    counts = torch.ones_like(origins)
    if not keep_copies:
        origins, counts = distinct(origins)
    return Recalled(x[origins.to(x.device)], counts.to(x.device), origins)


def _noise(x: Tensor, config: AscentConfig, generator: torch.Generator) -> Recalled:
    noise = torch.rand((config.images, *x.shape[1:]), generator=generator, dtype=x.dtype)
    return Recalled(noise.to(x.device), torch.ones(config.images, dtype=torch.int64, device=x.device), None)


def choose(available: int, count: int, generator: torch.Generator) -> Tensor:
    """`count` numbers below `available`, without replacement where there are enough of them.

    Drawn on the CPU, so that a seed means the same on every device.
    """
    if count <= available:
        return torch.randperm(available, generator=generator)[:count]
    return torch.randint(available, (count,), generator=generator)


def objective_terms(
    student_logits: Tensor,
    teacher_logits: Tensor,
    images: Tensor,
    present_classes: Tensor,
    config: RecallConfig,
    weights: Tensor | None = None,
) -> dict[str, Tensor]:
    """Every term of the objective, unweighted, under its name in TERMS; total variation only for images."""
    terms = {
        "divergence": objectives.divergence(student_logits, teacher_logits, weights, config.divergence),
        "teacher_avoidance": objectives.avoidance(teacher_logits, present_classes, weights),
        "student_avoidance": objectives.avoidance(student_logits, present_classes, weights),
        "diversity": objectives.diversity(teacher_logits, weights),
        "uncertainty": objectives.uncertainty(teacher_logits, weights),
        "l2_norm": objectives.l2_norm(images, weights),
    }
    if images.dim() == 4:
        terms["total_variation"] = objectives.total_variation(images, weights)
    return terms


def objective(terms: dict[str, Tensor], config: RecallConfig) -> Tensor:
    """The recall objective: terms of weight 0 are left out, so that they cannot spoil it by not being finite."""
    parts = [factor * terms[name] for name, factor in config.signed_weights().items() if factor]
    return torch.stack(parts).sum() if parts else 0 * terms["l2_norm"]


def recall(
    student: nn.Module, teacher: nn.Module, start: Recalled, present_classes: Tensor, config: RecallConfig
) -> tuple[Recalled, dict[str, float]]:
    """S steps of plain ascent, x̂ ← x̂ + η1·∇ recall(x̂): no momentum, no clipping, nothing random.

    Returns the recalled batch and every term of the objective at the last step. Both networks are used in the mode they
    are in; in train mode their running batch statistics move with every pass.
    """
    images, terms = start.images, dict[str, Tensor]()
    for _ in range(config.steps):
        images = images.detach().requires_grad_()
        with counted(student, start.multiplicities), counted(teacher, start.multiplicities):
            student_logits, teacher_logits = student(images), teacher(images)
        terms = objective_terms(student_logits, teacher_logits, images, present_classes, config, start.weights)
        total = objective(terms, config)
        if not bool(total.isfinite()):
            break
        (gradient,) = torch.autograd.grad(total, images)
        # An image that counts twice has twice the gradient of one of its copies, and moves as that copy would.
        images = images + config.recall_rate * gradient / per_image(start.counts, images)
    return replace(start, images=images.detach()), term_values(terms, config)


def term_values(terms: dict[str, Tensor], config: RecallConfig) -> dict[str, float]:
    """The terms and their weighted sum as numbers; one that stopped being finite ends the run by its name."""
    values = {name: float(terms[name].detach()) if name in terms else math.nan for name in TERMS}
    for name, factor in config.signed_weights().items():
        if factor and not math.isfinite(values[name]):
            raise DivergedError(f"the term {name} of the recall objective", values[name])
    total = float(objective(terms, config).detach())
    if not math.isfinite(total):
        raise DivergedError("the recall objective", total)
    return values | {"objective": total}


def per_image(values: Tensor, images: Tensor) -> Tensor:
    """One number an image, shaped to be multiplied with images."""
    return values.view(-1, *(1,) * (images.dim() - 1))
