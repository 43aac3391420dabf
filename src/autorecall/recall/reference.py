"""The equations as written: what `ascend` must agree with, for tests and the benchmark. No learner uses this."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from .batch import Recalled, per_image
from .copies import counted
from .objective import Objective


def recall(
    student: nn.Module, teacher: nn.Module, start: Recalled, objective: Objective, steps: int, rate: float
) -> tuple[Recalled, dict[str, float]]:
    """Lines 6-8 of Algorithm 1: autograd through both networks, one after the other, in one thread."""
    images, values = start.images, dict[str, float]()
    for _ in range(steps):
        images = images.detach().requires_grad_()
        with counted(student, start.multiplicities):
            student_logits = student(images)
        found = objective.terms(student_logits, objective.ask_teacher(teacher, images), images)
        total = objective.total(found)
        values = {name: float(found[name].detach()) if name in found else float("nan") for name in objective.weights}
        values["objective"] = float(total.detach())
        (gradient,) = torch.autograd.grad(total, images)
        images = images + rate * gradient / per_image(start.counts, images)
    return replace(start, images=images.detach()), values
