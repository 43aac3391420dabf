"""Two networks at once, each in its own thread: teacher and student meet only at the logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from ..threads import Threads

First = TypeVar("First")
Second = TypeVar("Second")


class SideBySide:
    """Runs two pieces of work at once: the first in this thread, the second in another.

    This pays off if there are cores to spare, i.e. if torch itself uses at most half of them. Each piece always runs in
    one thread with the same settings, so results do not depend on timing.
    """

    def __init__(self) -> None:
        self.threads = 1
        """Threads available in total; with fewer than twice torch's own, one piece follows the other."""
        self._other = Threads()

    def both(self, first: Callable[[], First], second: Callable[[], Second]) -> tuple[First, Second]:
        """The results of both."""
        if self.threads < 2 * torch.get_num_threads():
            return first(), second()
        other = self._other.submit(second)
        try:
            return first(), other.result()
        finally:
            other.exception()  # never leave while the other is still using the same network

    def __reduce__(self) -> tuple[type[SideBySide], tuple[()]]:
        return SideBySide, ()  # a copy, pickled or not, has a thread of its own
