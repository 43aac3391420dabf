"""The fast ascent: `recall.recall` with the same result, in a fraction of the time.

Teacher and student meet only at the logits, so each runs forward and backward in a thread of its own; the gradient at
the logits is in closed form; nothing but the images gets a gradient.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from .distinct import counted
from .errors import DivergedError
from .gradients import gradient_of
from .recall import RecallConfig, Recalled, term_values

First = TypeVar("First")
Second = TypeVar("Second")


class SideBySide:
    """Runs two pieces of work at once: the first in this thread, the second in another one.

    That pays where a core is to spare, that is where torch itself uses at most half of them. Each piece is computed by
    one thread with the same settings every time, so results do not depend on their timing.
    """

    def __init__(self) -> None:
        self.wanted = True
        self._worker: ThreadPoolExecutor | None = None
        self._threads = 0

    def both(self, first: Callable[[], First], second: Callable[[], Second]) -> tuple[First, Second]:
        """The results of both."""
        if not self.wanted or cores() < 2 * torch.get_num_threads():
            return first(), second()
        if self._worker is None or self._threads != torch.get_num_threads():
            # A new thread takes torch's number of threads over from the last that set it.
            self._threads = torch.get_num_threads()
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="autorecall")
        other = self._worker.submit(second)
        try:
            return first(), other.result()
        finally:
            other.exception()  # never leave while the other is still at work on the same network

    def __deepcopy__(self, memo: dict[int, object]) -> SideBySide:
        return SideBySide()


@cache
def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ascend(
    student: nn.Module,
    teacher: nn.Module,
    start: Recalled,
    present_classes: Tensor,
    classes: int,
    config: RecallConfig,
    side_by_side: SideBySide,
) -> tuple[Recalled, dict[str, float]]:
    """S steps of ascent; see `recall.recall`, which does the same in plain words."""
    images, counts = start.images.detach(), start.multiplicities
    gradient = gradient_of(start, present_classes, classes, config)
    for _ in range(config.steps):
        ours, theirs = images.detach().requires_grad_(), images.detach().requires_grad_()
        student_logits, teacher_logits = side_by_side.both(
            partial(forward, student, ours, counts), partial(forward, teacher, theirs, counts)
        )
        at_logits = gradient.at_logits(student_logits, teacher_logits, images)
        if at_logits is None:
            term_values(gradient.terms(), config)  # names the term, if it is one
            raise DivergedError("the gradient of the recall objective", math.nan)
        at_student, at_teacher = at_logits
        # The teacher first: on one thread its weights are still in the cache, and then the student's for the next step.
        by_teacher, by_student = side_by_side.both(
            partial(_backward, teacher_logits, theirs, at_teacher), partial(_backward, student_logits, ours, at_student)
        )
        images = gradient.step(images, by_student, by_teacher)
    return replace(start, images=images), term_values(gradient.terms(), config)


def forward(network: nn.Module, images: Tensor, counts: Tensor | None) -> Tensor:
    """Logits of a batch in which image k occurs counts[k] times."""
    with counted(network, counts):
        logits: Tensor = network(images)
    return logits


def _backward(logits: Tensor, images: Tensor, at_logits: Tensor) -> Tensor:
    return torch.autograd.grad(logits, images, at_logits)[0]
