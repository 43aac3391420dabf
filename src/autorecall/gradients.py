"""The gradient of the recall objective, at the logits and at the images, and the step along it.

`Plain` lets autograd find it through `objectives`. `Compiled` has it in closed form, in C: logits are a handful of
numbers, for which the overhead of tensor operations outweighs their arithmetic.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from .errors import InputError
from .kernels import call, can_call
from .objectives import Divergence
from .recall import TERMS, RecallConfig, Recalled, objective, objective_terms, per_image

KINDS: dict[Divergence, int] = {"mixture-first": 0, "jensen-shannon": 1, "cross-entropy": 2}


class Gradient(Protocol):
    """How one batch ascends; `images` first go through both networks, then through these two methods."""

    def at_logits(self, student_logits: Tensor, teacher_logits: Tensor, images: Tensor) -> tuple[Tensor, Tensor] | None:
        """∂ objective / ∂ logits, of the student and of the teacher; None where that is not finite."""

    def step(self, images: Tensor, by_student: Tensor, by_teacher: Tensor) -> Tensor:
        """The images after one step, given what the two networks made of those gradients."""

    def terms(self) -> dict[str, Tensor]:
        """Every term of the objective before the last step."""


def gradient_of(start: Recalled, present_classes: Tensor, classes: int, config: RecallConfig) -> Gradient:
    """The fastest that works here."""
    x = start.images
    dense = x.is_contiguous() or (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last))
    return (Compiled if can_call(x) and dense else Plain)(start, present_classes, classes, config)


class Plain:
    """By autograd, on logits and images cut off from the networks."""

    def __init__(self, start: Recalled, present_classes: Tensor, classes: int, config: RecallConfig) -> None:
        self._start, self._present_classes, self._config = start, present_classes, config
        self._terms: dict[str, Tensor] = {}
        self._at_images: Tensor | None = None

    def at_logits(self, student_logits: Tensor, teacher_logits: Tensor, images: Tensor) -> tuple[Tensor, Tensor] | None:
        """∂ objective / ∂ logits, of the student and of the teacher; None where that is not finite."""
        s, t, x = (tensor.detach().requires_grad_() for tensor in (student_logits, teacher_logits, images))
        terms = objective_terms(s, t, x, self._present_classes, self._config, self._start.weights)
        total = objective(terms, self._config)
        self._terms = {name: term.detach() for name, term in terms.items()}
        at = torch.autograd.grad(total, (s, t, x), allow_unused=True, materialize_grads=True)
        self._at_images = at[2]
        return (at[0], at[1]) if bool(total.isfinite()) else None

    def step(self, images: Tensor, by_student: Tensor, by_teacher: Tensor) -> Tensor:
        """The images after one step, given what the two networks made of those gradients."""
        assert self._at_images is not None
        gradient = (by_student + by_teacher + self._at_images) / per_image(self._start.counts, images)
        return images + self._config.recall_rate * gradient

    def terms(self) -> dict[str, Tensor]:
        """Every term of the objective before the last step."""
        return self._terms


class Compiled:
    """In closed form. The arithmetic is explained beside it, in _kernels.c."""

    def __init__(self, start: Recalled, present_classes: Tensor, classes: int, config: RecallConfig) -> None:
        x = start.images
        self._config, self._total = config, start.total
        self._weights, self._counts = start.weights, start.counts.to(x)
        self._present = x.new_zeros(classes)
        self._present[present_classes] = 1 / len(present_classes)
        self._work, self._found = x.new_empty(5, classes), x.new_zeros(len(TERMS))
        self._names = TERMS if x.dim() == 4 else TERMS[:-1]

    def at_logits(self, student_logits: Tensor, teacher_logits: Tensor, images: Tensor) -> tuple[Tensor, Tensor] | None:
        """∂ objective / ∂ logits, of the student and of the teacher; None where that is not finite."""
        config, expected = self._config, (len(images), len(self._present))
        for logits in (student_logits, teacher_logits):
            if logits.shape != expected:  # C code takes it on trust
                raise InputError(
                    f"the network gave logits of shape {tuple(logits.shape)}, and {expected} before; "
                    "its number of outputs must not change"
                )
        student, teacher = (
            logits.detach().to(images.dtype).contiguous() for logits in (student_logits, teacher_logits)
        )
        at_student, at_teacher = torch.empty_like(student), torch.empty_like(teacher)
        all_finite = call(
            "logit_gradient",
            (student, teacher, self._weights, self._present, at_student, at_teacher, self._work, self._found),
            *(*student.shape, KINDS[config.divergence], config.divergence_weight),
            *(config.teacher_avoidance, config.student_avoidance, config.diversity, config.uncertainty),
        )
        return (at_student.to(student_logits), at_teacher.to(teacher_logits)) if all_finite else None

    def step(self, images: Tensor, by_student: Tensor, by_teacher: Tensor) -> Tensor:
        """The images after one step, given what the two networks made of those gradients."""
        config, stepped = self._config, torch.empty_like(images)
        by_student, by_teacher = (_like(gradient, images) for gradient in (by_student, by_teacher))
        shape, strides = images.shape[1:], images.stride()
        if images.dim() != 4:  # no rows and columns to compare
            shape, strides = torch.Size((1, 1, images[0].numel())), (images[0].numel(), 0, 0, 1)
        call(
            "ascent_step",
            (images, by_student, by_teacher, stepped, self._counts, self._found[5:]),
            *(len(images), *shape, *strides, self._total, config.recall_rate),
            *(config.l2_norm, config.total_variation),
        )
        return stepped

    def terms(self) -> dict[str, Tensor]:
        """Every term of the objective before the last step."""
        return dict(zip(self._names, self._found, strict=False))


def _like(gradient: Tensor, images: Tensor) -> Tensor:
    """A gradient in the memory layout of the images."""
    return gradient if gradient.stride() == images.stride() else torch.empty_like(images).copy_(gradient)
