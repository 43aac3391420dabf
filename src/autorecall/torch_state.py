"""What torch has once for the whole process: the number of threads and the global generators. Left as found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from .learners.state import State, tensor


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """torch on this many threads, and as before afterwards."""
    found = torch.get_num_threads()
    try:
        torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(found)


@contextmanager
def own_random_state(seed: int) -> Iterator[None]:
    """Initial weights and dropout use torch's global generator: seed it for the run, and put it back afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def random_state(device: str) -> dict[str, Tensor]:
    """torch's global generators, from which dropout draws."""
    cuda = {"cuda": torch.cuda.get_rng_state(device)} if torch.device(device).type == "cuda" else {}
    return {"cpu": torch.get_rng_state()} | cuda


def set_random_state(state: State, device: str) -> None:
    """Take back what `random_state` gave."""
    torch.set_rng_state(tensor(state["cpu"]))
    if "cuda" in state:
        torch.cuda.set_rng_state(tensor(state["cuda"]), device)
