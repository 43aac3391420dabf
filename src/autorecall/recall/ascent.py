"""The ascent: S steps of x̂ ← x̂ + η1·∇ objective(x̂), for any objective.

No momentum, no clipping, nothing random. Teacher and student meet only at the logits, so each runs forward and backward
in its own thread, by a plan if there is one, and only the images get a gradient. `reference` is the plain version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn

from .batch import Recalled
from .copies import forward
from .objective import Objective
from .plan import Plan, Plans
from .side_by_side import SideBySide

Outputs: TypeAlias = tuple[Tensor, ...]
Back: TypeAlias = Callable[[Outputs], Tensor]  # from the gradient at the outputs to that of the images


class Ascent:
    """The ascent of one batch. Both networks stay in their current mode; in train mode every pass moves their running
    batch statistics."""

    def __init__(
        self,
        student: nn.Module,
        teacher: nn.Module,
        start: Recalled,
        objective: Objective,
        side_by_side: SideBySide,
        plans: Plans,
    ) -> None:
        self._start, self._objective, self._side_by_side = start, objective, side_by_side
        images = start.images
        ask_student = partial(_logits, student, counts=start.multiplicities, total=start.total)
        self._through_student = _through(plans.of(student, images), ask_student, start, statistics=False)
        as_usual = type(objective).ask_teacher is Objective.ask_teacher
        planned = plans.of(teacher, images) if as_usual else None
        ask_teacher = partial(objective.ask_teacher, teacher)
        self._through_teacher = _through(planned, ask_teacher, start, objective.wants_statistics)
        self._begun: tuple[Outputs, Back] | None = None

    def begin(self) -> None:
        """The teacher's first pass, which does not need the student: it can be made while that is still learning."""
        self._begun = self._through_teacher(self._start.images.detach())

    def climb(self, steps: int, rate: float) -> tuple[Recalled, dict[str, float]]:
        """The recalled batch after S steps, and every term of the objective at the last one."""
        images, objective, both = self._start.images.detach(), self._objective, self._side_by_side.both
        for _ in range(steps):
            ((student_logits,), back_through_student), (teacher_outputs, back_through_teacher) = both(
                partial(self._through_student, images), partial(self._pass_teacher, images)
            )
            at_outputs = objective.at_outputs(student_logits, teacher_outputs, images)
            if at_outputs is None:
                raise objective.diverged()
            at_student, at_teacher = at_outputs
            # Teacher first: on one thread its weights are still cached, and then the student's are for the next step.
            by_teacher, by_student = both(
                partial(back_through_teacher, at_teacher), partial(back_through_student, (at_student,))
            )
            images = objective.step(images, by_student, by_teacher, rate)
        return replace(self._start, images=images), objective.values()

    def _pass_teacher(self, images: Tensor) -> tuple[Outputs, Back]:
        begun, self._begun = self._begun, None
        return begun or self._through_teacher(images)


def _through(
    plan: Plan | None, ask: Callable[[Tensor], Outputs], start: Recalled, statistics: bool
) -> Callable[[Tensor], tuple[Outputs, Back]]:
    """A pass through a network: its outputs, and the way back."""
    if plan is None:
        return partial(_by_autograd, ask)
    return partial(_by_plan, plan, start.weights, start.total, statistics)


def _by_plan(plan: Plan, shares: Tensor, total: int, statistics: bool, images: Tensor) -> tuple[Outputs, Back]:
    outputs, run = plan.forward(images, shares, total, statistics)
    return outputs, lambda at_outputs: plan.backward(run, *at_outputs)


def _by_autograd(ask: Callable[[Tensor], Outputs], images: Tensor) -> tuple[Outputs, Back]:
    images = images.detach().requires_grad_()
    outputs = ask(images)
    return outputs, lambda at_outputs: torch.autograd.grad(outputs, images, at_outputs)[0]


def _logits(network: nn.Module, images: Tensor, counts: Tensor | None, total: int) -> Outputs:
    return (forward(network, images, counts, total),)
