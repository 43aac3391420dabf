"""The fast ascent: `recall.recall` with the same result, in a fraction of the time.

Teacher and student meet only at the logits, so each runs forward and backward in a thread of its own; the gradient at
the logits is in closed form; nothing but the images gets a gradient; terms are worked out at the last step alone.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from .distinct import counted
from .gradients import add_image_gradient, logit_gradients
from .recall import RecallConfig, Recalled, objective_terms, per_image, term_values

First = TypeVar("First")
Second = TypeVar("Second")


class SideBySide:
    """Runs two pieces of work at once, each on half of torch's threads; one after the other if there is but one.

    Each piece is computed by the same number of threads every time, so results do not depend on their timing.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._workers: list[ThreadPoolExecutor] = []
        self._threads = 0

    def both(self, first: Callable[[], First], second: Callable[[], Second]) -> tuple[First, Second]:
        """The results of both. An accelerator has its own queue, and is better off without threads."""
        threads = torch.get_num_threads()
        if self._device.type != "cpu" or threads < 2:
            return first(), second()
        if self._threads != threads:
            self._start(threads)
        other = self._workers[1].submit(second)
        return self._workers[0].submit(first).result(), other.result()

    def _start(self, threads: int) -> None:
        # torch keeps its number of threads by calling thread: a worker's own leaves ours alone, except for that of the
        # matrix library, which is put back.
        self._workers = [ThreadPoolExecutor(1, thread_name_prefix="autorecall") for _ in range(2)]
        for worker in self._workers:
            worker.submit(torch.set_num_threads, threads // 2).result()
        torch.set_num_threads(threads)
        self._threads = threads

    def __deepcopy__(self, memo: dict[int, object]) -> SideBySide:
        return SideBySide(self._device)


def ascend(
    student: nn.Module,
    teacher: nn.Module,
    start: Recalled,
    present_classes: Tensor,
    config: RecallConfig,
    side_by_side: SideBySide,
) -> tuple[Recalled, dict[str, float]]:
    """S steps of ascent; see `recall.recall`, which does the same in plain words."""
    images, counts, weights = start.images.detach(), start.multiplicities, start.weights
    divisor = None if counts is None else per_image(counts.to(images), images)
    terms: dict[str, Tensor] = {}
    for step in range(config.steps):
        ours, theirs = images.detach().requires_grad_(), images.detach().requires_grad_()
        student_logits, teacher_logits = side_by_side.both(
            partial(forward, student, ours, counts), partial(forward, teacher, theirs, counts)
        )
        with torch.no_grad():
            if step == config.steps - 1:
                terms = objective_terms(student_logits, teacher_logits, images, present_classes, config, weights)
            at_student, at_teacher = logit_gradients(student_logits, teacher_logits, present_classes, weights, config)
        # The teacher first: on one thread its weights are still in the cache, and then the student's for the next step.
        gradient, other = side_by_side.both(
            partial(_backward, teacher_logits, theirs, at_teacher), partial(_backward, student_logits, ours, at_student)
        )
        gradient = gradient.add_(other)
        if divisor is not None:
            gradient.div_(divisor)
        add_image_gradient(gradient, images, 1 / start.total, config)
        images = torch.add(images, gradient, alpha=config.recall_rate)
    return replace(start, images=images), term_values(terms, config)


def forward(network: nn.Module, images: Tensor, counts: Tensor | None) -> Tensor:
    """Logits of a batch in which image k occurs counts[k] times."""
    with counted(network, counts):
        logits: Tensor = network(images)
    return logits


def _backward(logits: Tensor, images: Tensor, at_logits: Tensor) -> Tensor:
    return torch.autograd.grad(logits, images, at_logits)[0]
