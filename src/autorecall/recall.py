"""Recall: inputs on which student and teacher disagree most, found by ascending the recall objective (equation 7).

This is the plain form of lines 6-8 of Algorithm 1: M images, each copy of a real image by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from . import objectives
from .errors import ConfigError, DivergedError
from .objectives import Divergence

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
class RecallConfig:
    """How images are recalled. Defaults are the paper's values for MNIST."""

    images: int = 10
    """M, the number of recalled images."""

    steps: int = 10
    """S, the number of ascent steps."""

    recall_rate: float = 25.0
    """η1, the rate of an ascent step. The objective is a mean, so one image moves by η1/M times its own gradient."""

    initial: Literal["real", "noise"] = "real"
    """What recalled images start as: images of the real batch, or uniform noise in [0, 1)."""

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

    l2_norm: float = 1.0
    """λ5, against large pixel values."""

    total_variation: float = 1.0
    """λ6, against rough images; must be 0 where inputs are not images (channels, height, width)."""

    def __post_init__(self) -> None:
        for name in ("images", "steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"learner.{name} is {getattr(self, name)}; expected at least 1")
        if not (math.isfinite(self.recall_rate) and self.recall_rate > 0):
            raise ConfigError(f"learner.recall_rate is {self.recall_rate}; expected a number above 0")
        for name in ("divergence_weight", *TERMS[1:]):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"learner.{name} is {value}; expected a number of at least 0")

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
    """The recalled inputs."""

    terms: dict[str, float]
    """Every term of the objective at the last ascent step, unweighted, and their weighted sum `objective`."""


def initial_images(x: Tensor, config: RecallConfig, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
    """M starting points, and which image of the real batch each one is (None for noise).

    Drawn on the CPU, so that a seed means the same on every device; without replacement where the batch allows it.
    """
    count = len(x)
    if config.initial == "noise":
        noise = torch.rand((config.images, *x.shape[1:]), generator=generator, dtype=x.dtype)
        return noise.to(x.device), None
    if config.images <= count:
        origins = torch.randperm(count, generator=generator)[: config.images]
    else:
        origins = torch.randint(count, (config.images,), generator=generator)
    return x[origins.to(x.device)], origins


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


def weighted_sum(terms: dict[str, Tensor], config: RecallConfig) -> Tensor:
    """The recall objective: terms of weight 0 are left out, so that they cannot spoil it by not being finite."""
    parts = [factor * terms[name] for name, factor in config.signed_weights().items() if factor]
    return torch.stack(parts).sum() if parts else 0 * terms["l2_norm"]


def recall(
    student: nn.Module, teacher: nn.Module, images: Tensor, present_classes: Tensor, config: RecallConfig
) -> Recalled:
    """S steps of plain ascent, x̂ ← x̂ + η1·∇ recall(x̂): no momentum, no clipping, nothing random.

    Both networks are used in the mode they are in; in train mode their running batch statistics move with every pass.
    """
    terms: dict[str, Tensor] = {}
    objective = images.new_zeros(())
    for _ in range(config.steps):
        images = images.detach().requires_grad_()
        terms = objective_terms(student(images), teacher(images), images, present_classes, config)
        objective = weighted_sum(terms, config)
        if not bool(objective.isfinite()):
            raise _diverged(terms, objective, config)
        (gradient,) = torch.autograd.grad(objective, images)
        images = images + config.recall_rate * gradient
    numbers = {name: float(terms[name].detach()) if name in terms else math.nan for name in TERMS}
    return Recalled(images.detach(), numbers | {"objective": float(objective.detach())})


def _diverged(terms: dict[str, Tensor], objective: Tensor, config: RecallConfig) -> DivergedError:
    weights = config.signed_weights()
    for name, value in terms.items():
        if weights[name] and not bool(value.isfinite()):
            return DivergedError(f"the term {name} of the recall objective", float(value.detach()))
    return DivergedError("the recall objective", float(objective.detach()))
