"""The equations as written: what `ascent` must agree with, for tests and the benchmark. No learner uses this."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from .batch import Recalled, per_image
from .copies import counted
from .objective import Objective


class Ascent:
    """Lines 7 and 8 of Algorithm 1: autograd through both networks, one after the other, in one thread."""

    def __init__(self, student: nn.Module, teacher: nn.Module, start: Recalled, objective: Objective) -> None:
        self._student, self._teacher, self._start, self._objective = student, teacher, start, objective

    def begin(self) -> None:
        """There is nothing to do ahead of time."""

    def climb(self, steps: int, rate: float) -> tuple[Recalled, dict[str, float]]:
        """The recalled batch after S steps, and every term of the objective at the last one."""
        start, objective, images, values = self._start, self._objective, self._start.images, dict[str, float]()
        for _ in range(steps):
            images = images.detach().requires_grad_()
            with counted(self._student, start.multiplicities):
                student_logits = self._student(images)
            found = objective.terms(student_logits, objective.ask_teacher(self._teacher, images), images)
            total = objective.total(found)
            values = {
                name: float(found[name].detach()) if name in found else float("nan") for name in objective.weights
            }
            values["objective"] = float(total.detach())
            (gradient,) = torch.autograd.grad(total, images)
            images = images + rate * gradient / per_image(start.counts, images)
        return replace(start, images=images.detach()), values
