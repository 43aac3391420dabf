"""torch's process-wide state, its threads and global generators: restored after use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

from .storage.state import State, tensor


@cache
def cores() -> int:
    """The number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """Run torch on this many threads; restored afterwards."""
    found = torch.get_num_threads()
    try:
        torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(found)


@contextmanager
def own_random_state(seed: int) -> Iterator[None]:
    """Initial weights and dropout use torch's global generator: seed it for the run, and restore it afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def random_state(device: str) -> dict[str, Tensor]:
    """torch's global generators, which dropout draws from."""
    cuda = {"cuda": torch.cuda.get_rng_state(device)} if torch.device(device).type == "cuda" else {}
    return {"cpu": torch.get_rng_state()} | cuda


def set_random_state(state: State, device: str) -> None:
    """Restore what `random_state` returned."""
    torch.set_rng_state(tensor(state["cpu"]))
    if "cuda" in state:
        torch.cuda.set_rng_state(tensor(state["cuda"]), device)
