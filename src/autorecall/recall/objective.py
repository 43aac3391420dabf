"""What recalled images ascend: a weighted sum of terms, and its gradient at the two networks' outputs.

`Objective` is any such sum, differentiated by autograd; `Disagreement` is the paper's (equations 8 and 9), and
`ClosedForm` the same with gradients written out in C: logits are a handful of numbers, so the overhead of tensor
operations outweighs their arithmetic. `Inversion` is for images that have a class to show.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import DivergedError, InputError
from .batch import Aimed, Recalled, like, per_image
from .copies import forward
from .kernels import call, can_call
from .statistics import statistics_of
from .terms import (
    DivergenceForm,
    avoidance,
    divergence,
    diversity,
    l2_norm,
    total_variation,
    uncertainty,
    weighted_mean,
)

TERMS = (
    "divergence",
    "teacher_avoidance",
    "student_avoidance",
    "diversity",
    "uncertainty",
    "l2_norm",
    "total_variation",
)
REGULARISERS = ("uncertainty", "l2_norm", "total_variation")  # terms that count against the objective
_FORMS: dict[DivergenceForm, int] = {"mixture-first": 0, "jensen-shannon": 1, "cross-entropy": 2}


class Objective(ABC):
    """A weighted sum of terms, for one batch of recalled images. Subclasses define the terms."""

    def __init__(self, start: Recalled, weights: Mapping[str, float]) -> None:
        self.start, self.weights = start, weights
        # To look at a number of an accelerator is to wait for it: there, the ascent is checked once, at its end.
        self.checks_every_step = start.images.device.type == "cpu"
        self._all_finite: Tensor | None = None
        self._multiplicities, self._total = start.multiplicities, start.total
        self._found: dict[str, Tensor] = {}
        self._at_images: Tensor | None = None

    @abstractmethod
    def terms(self, student_logits: Tensor, teacher_outputs: tuple[Tensor, ...], images: Tensor) -> dict[str, Tensor]:
        """Every term these inputs have, unweighted, by name."""

    @property
    def wants_statistics(self) -> bool:
        """Whether the terms need the distance of the batch statistics from the teacher's running ones."""
        return False

    def ask_teacher(self, teacher: nn.Module, images: Tensor) -> tuple[Tensor, ...]:
        """The teacher's logits, followed by that distance if it is wanted, and if the teacher has batch-norm."""
        if not self.wants_statistics:
            return (forward(teacher, images, self._multiplicities, self._total),)
        with statistics_of(teacher, self.start) as distances:
            logits = forward(teacher, images, self._multiplicities, self._total)
        return (logits, torch.stack(distances).mean()) if distances else (logits,)

    def total(self, found: Mapping[str, Tensor]) -> Tensor:
        """The weighted sum. Terms of weight 0 are left out, so they cannot spoil it if they are not finite."""
        parts = [weight * found[name] for name, weight in self.weights.items() if weight and name in found]
        return torch.stack(parts).sum() if parts else self.start.images.new_zeros(())

    def at_outputs(
        self, student_logits: Tensor, teacher_outputs: tuple[Tensor, ...], images: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]] | None:
        """The gradient at the student's logits and at the teacher's outputs; None if the objective is not finite."""
        # Detached from the networks, which take over from here.
        student, *teacher, x = (
            output.detach().requires_grad_() for output in (student_logits, *teacher_outputs, images)
        )
        found = self.terms(student, tuple(teacher), x)
        total = self.total(found)
        self._found = {name: term.detach() for name, term in found.items()}
        if self.checks_every_step:
            if not bool(total.isfinite()):
                return None
        else:
            finite = total.detach().isfinite()
            self._all_finite = finite if self._all_finite is None else self._all_finite & finite
        inputs = (student, *teacher, x)
        if total.requires_grad:
            at_inputs = torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)
        else:  # no term has a weight
            at_inputs = tuple(map(torch.zeros_like, inputs))
        at_student, *at_teacher, self._at_images = at_inputs
        return at_student, tuple(at_teacher)

    def step(self, images: Tensor, by_student: Tensor, by_teacher: Tensor, rate: float) -> Tensor:
        """The images after one step, given the gradients that came back through the networks."""
        assert self._at_images is not None
        # An image that counts twice has twice the gradient of one of its copies, and moves as that copy would.
        gradient = by_student + by_teacher + self._at_images
        return images + rate * gradient / per_image(self.start.counts, images)

    def values(self) -> dict[str, float]:
        """Every term before the last step, and the weighted sum; a DivergedError names one that is not finite."""
        values = {name: float(self._found[name]) if name in self._found else math.nan for name in self.weights}
        for name, weight in self.weights.items():
            if weight and name in self._found and not math.isfinite(values[name]):
                raise DivergedError(f"the term {name} of the recall objective", values[name])
        total = float(self.total(self._found))
        if self._all_finite is not None and not bool(self._all_finite):
            total = math.nan
        if not math.isfinite(total):
            raise DivergedError("the recall objective", total)
        return values | {"objective": total}

    def diverged(self) -> DivergedError:
        """The error to raise if `at_outputs` returned None; it names the term, if a term is to blame."""
        try:
            self.values()
        except DivergedError as error:
            return error
        return DivergedError("the gradient of the recall objective", math.nan)


class Disagreement(Objective):
    """Equations 8 and 9: student and teacher disagree, on many classes other than those of the real batch."""

    def __init__(
        self, start: Recalled, weights: Mapping[str, float], present_classes: Tensor, form: DivergenceForm
    ) -> None:
        super().__init__(start, weights)
        self.present_classes, self.form = present_classes, form

    def terms(self, student_logits: Tensor, teacher_outputs: tuple[Tensor, ...], images: Tensor) -> dict[str, Tensor]:
        """Every term by its name in TERMS; total variation only for images."""
        (teacher_logits,), weights = teacher_outputs, self.start.weights
        found = {
            "divergence": divergence(student_logits, teacher_logits, weights, self.form),
            "teacher_avoidance": avoidance(teacher_logits, self.present_classes, weights),
            "student_avoidance": avoidance(student_logits, self.present_classes, weights),
            "diversity": diversity(teacher_logits, weights),
            "uncertainty": uncertainty(teacher_logits, weights),
            "l2_norm": l2_norm(images, weights),
        }
        if images.dim() == 4:
            found["total_variation"] = total_variation(images, weights)
        return found


class Inversion(Objective):
    """What images with a class to show ascend: the teacher assigns them to it, and the student disagrees."""

    start: Aimed

    def __init__(self, start: Aimed, weights: Mapping[str, float], form: DivergenceForm = "mixture-first") -> None:
        super().__init__(start, weights)
        self.form = form

    @property
    def wants_statistics(self) -> bool:
        """Unless they do not count."""
        return bool(self.weights.get("batch_statistics"))

    def terms(self, student_logits: Tensor, teacher_outputs: tuple[Tensor, ...], images: Tensor) -> dict[str, Tensor]:
        """Every term by its name; total variation only for images."""
        teacher_logits, *statistics = teacher_outputs
        weights = self.start.weights
        off_target = F.cross_entropy(teacher_logits, self.start.classes, reduction="none")
        found = {
            "class_loss": weighted_mean(off_target, weights),
            "divergence": divergence(student_logits, teacher_logits, weights, self.form),
            "l2_norm": l2_norm(images, weights),
        }
        if images.dim() == 4:
            found["total_variation"] = total_variation(images, weights)
        return found | {"batch_statistics": statistics[0] if statistics else images.new_zeros(())}


def disagreement(
    start: Recalled, weights: Mapping[str, float], present_classes: Tensor, form: DivergenceForm, classes: int
) -> Disagreement:
    """The paper's objective, computed in the fastest way available."""
    x = start.images
    dense = x.is_contiguous() or (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last))
    if can_call(x) and dense:
        return ClosedForm(start, weights, present_classes, form, classes)
    return Disagreement(start, weights, present_classes, form)


class ClosedForm(Disagreement):
    """The same with its gradient in closed form. _kernels.c explains the arithmetic."""

    def __init__(
        self,
        start: Recalled,
        weights: Mapping[str, float],
        present_classes: Tensor,
        form: DivergenceForm,
        classes: int,
    ) -> None:
        super().__init__(start, weights, present_classes, form)
        x = start.images
        self._shares, self._counts = start.weights, start.counts.to(x)
        self._present = x.new_zeros(classes)
        self._present[present_classes] = 1 / len(present_classes)
        self._scratch, self._terms = x.new_empty(5, classes), x.new_zeros(len(TERMS))
        # The C functions subtract the regularisers themselves; total variation is only for images.
        self._factors = [-weights[name] if name in REGULARISERS else weights[name] for name in TERMS]
        self._factors[-1] *= x.dim() == 4
        self._found = dict(zip(TERMS if x.dim() == 4 else TERMS[:-1], self._terms, strict=False))

    def at_outputs(
        self, student_logits: Tensor, teacher_outputs: tuple[Tensor, ...], images: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]] | None:
        """The gradient at both networks' logits; None if it is not finite."""
        (teacher_logits,), expected = teacher_outputs, (len(images), len(self._present))
        for logits in (student_logits, teacher_logits):
            if logits.shape != expected:  # the C code trusts it
                raise InputError(
                    f"the network returned logits of shape {tuple(logits.shape)}, but {expected} before; "
                    "its number of outputs must not change"
                )
        student, teacher = (
            logits.detach().to(images.dtype).contiguous() for logits in (student_logits, teacher_logits)
        )
        at_student, at_teacher = torch.empty_like(student), torch.empty_like(teacher)
        all_finite = call(
            "logit_gradient",
            (student, teacher, self._shares, self._present, at_student, at_teacher, self._scratch, self._terms),
            *(*student.shape, _FORMS[self.form]),
            *self._factors[:5],
        )
        return (at_student.to(student_logits), (at_teacher.to(teacher_logits),)) if all_finite else None

    def step(self, images: Tensor, by_student: Tensor, by_teacher: Tensor, rate: float) -> Tensor:
        """The images after one step, given the gradients that came back through the networks."""
        stepped = torch.empty_like(images)
        by_student, by_teacher = (like(gradient, images) for gradient in (by_student, by_teacher))
        shape, strides = images.shape[1:], images.stride()
        if images.dim() != 4:  # no rows and columns to compare
            shape, strides = torch.Size((1, 1, images[0].numel())), (images[0].numel(), 0, 0, 1)
        call(
            "ascent_step",
            (images, by_student, by_teacher, stepped, self._counts, self._terms[5:]),
            *(len(images), *shape, *strides, self._total, rate),
            *self._factors[5:],
        )
        return stepped
