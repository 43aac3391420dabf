"""The ascent: S steps of x̂ ← x̂ + η1·∇ objective(x̂), for any objective.

No momentum, no clipping, nothing random. Teacher and student meet only at the logits, so each runs forward and backward
in its own thread, and only the images get a gradient. `reference.recall` is the plain version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from .batch import Recalled
from .copies import forward
from .objective import Objective
from .side_by_side import SideBySide


def ascend(
    student: nn.Module,
    teacher: nn.Module,
    start: Recalled,
    objective: Objective,
    steps: int,
    rate: float,
    side_by_side: SideBySide,
) -> tuple[Recalled, dict[str, float]]:
    """The recalled batch after S steps, and every term of the objective at the last one.

    Both networks stay in their current mode; in train mode every pass moves their running batch statistics.
    """
    images, counts = start.images.detach(), start.multiplicities
    for _ in range(steps):
        ours, theirs = images.detach().requires_grad_(), images.detach().requires_grad_()
        student_logits, teacher_outputs = side_by_side.both(
            partial(forward, student, ours, counts), partial(objective.ask_teacher, teacher, theirs)
        )
        at_outputs = objective.at_outputs(student_logits, teacher_outputs, images)
        if at_outputs is None:
            raise objective.diverged()
        at_student, at_teacher = at_outputs
        # Teacher first: on one thread its weights are still cached, and then the student's are for the next step.
        by_teacher, by_student = side_by_side.both(
            partial(_backward, teacher_outputs, theirs, at_teacher),
            partial(_backward, (student_logits,), ours, (at_student,)),
        )
        images = objective.step(images, by_student, by_teacher, rate)
    return replace(start, images=images), objective.values()


def _backward(outputs: Sequence[Tensor], images: Tensor, at_outputs: Sequence[Tensor]) -> Tensor:
    return torch.autograd.grad(outputs, images, at_outputs)[0]
