"""Learners take their steps by minimal filtering where it can be done, which changes nothing but rounding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from autorecall.learners.base import Learner, methods
from autorecall.recall.kernels import winograd_pays
from autorecall.torch_state import cores, limited_threads

pytestmark = pytest.mark.skipif(not winograd_pays(), reason="no compiled kernels, or no AVX2")


def learned(method: str, filtered: bool = True, threads: int = 1) -> tuple[Learner, list[Tensor]]:
    """A learner after two tasks, and its weights."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3, padding=1),
        nn.BatchNorm2d(12),
        nn.Flatten(),
        nn.Linear(12 * 64, 4),
    ).double()
    learner = methods()[method]().for_stream((2, 2)).build(network, 0)
    learner._filtered = learner._filtered and filtered
    learner.threads = threads
    with limited_threads(1):
        for step in range(4):
            x = torch.rand(10, 3, 8, 8, dtype=torch.float64)
            learner.observe(x, torch.randint(0, 2, (10,)) + step // 2 * 2)
    return learner, list(network.parameters())


@pytest.mark.parametrize("method", ["naive", "lwf", "er", "er-mir", "gem", "icarl", "arm", "adi", "mean-shift"])
def test_only_rounding_changes(method: str) -> None:
    (_, found), (_, expected) = learned(method), learned(method, filtered=False)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-9)
    assert not all(map(torch.equal, found, expected))


@pytest.mark.skipif(cores() < 2, reason="one core")
def test_two_threads_learn_the_same() -> None:
    (_, one), (_, two) = learned("arm"), learned("arm", threads=2)
    assert all(map(torch.equal, one, two))


def test_networks_that_would_not_survive_it() -> None:
    fragile = nn.Sequential(
        nn.Conv2d(3, 8, 1, stride=2), nn.Conv2d(8, 8, 3, padding=1), nn.Flatten(), nn.Linear(128, 2)
    )
    learner = methods()["naive"]().build(fragile, 0)
    assert not learner._filtered
