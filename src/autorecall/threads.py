"""Threads for pieces of work that run at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from .torch_state import limited_threads

Found = TypeVar("Found")


class Threads:
    """Threads that are made when they are needed first; a copy, pickled or not, makes its own."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._made_for: tuple[int, int, int] | None = None

    def submit(self, work: Callable[[], Found], threads: int = 1) -> Future[Found]:
        """Have it done by one of so many threads."""
        # A forked process inherits the pool without its threads.
        here = (os.getpid(), torch.get_num_threads(), threads)
        if self._pool is None or self._made_for != here:
            # A new thread would multiply matrices on all cores, until an operation of torch's own tells it not to.
            self._made_for = here
            self._pool = ThreadPoolExecutor(
                threads, "autorecall", initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),)
            )
        return self._pool.submit(work)

    def each(self, work: Callable[[Tensor], Tensor], x: Tensor, threads: int) -> Tensor:
        """What becomes of a batch if its parts are worked on at once, with torch in one thread for each.

        The first part is worked on in this thread, each other one in its own.
        """
        with limited_threads(1):
            own, *rest = x.chunk(threads)
            others = [self.submit(partial(_plainly, work, part), len(rest)) for part in rest]
            try:
                return torch.cat([work(own), *(other.result() for other in others)])
            finally:
                wait(others)  # never leave while one still uses what they share

    def __reduce__(self) -> tuple[type[Threads], tuple[()]]:
        return Threads, ()


@torch.no_grad()
def _plainly(work: Callable[[Tensor], Tensor], part: Tensor) -> Tensor:
    """Whether there are gradients is known to each thread alone."""
    return work(part)
