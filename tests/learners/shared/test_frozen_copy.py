"""The teacher is a copy, not an accomplice: of any network, watched by nobody."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch import Tensor, nn

from autorecall import ARM, ARMConfig, LagConfig

from ..worlds import (
    CLASSES,
    Make,
    any_method,
    assert_same,
    batch,
    learner,
    mlp,
    observe,
)


class Watcher:
    """A hook that cannot be copied, and counts whom it watches."""

    def __init__(self) -> None:
        self.lock, self.calls = threading.Lock(), 0

    def __call__(self, *_: object) -> None:
        self.calls += 1


def test_hooks_of_the_user_watch_their_network_alone() -> None:
    network, watcher = mlp(), Watcher()
    network.register_forward_hook(watcher)
    student = ARM(network, ARMConfig(ascent_steps=3, total_variation=0.0, lag=LagConfig("every", 1, start=0)))
    student.observe(*batch(0))
    # One pass to count outputs, the real batch, three ascent steps, the recalled and the real batch together.
    assert watcher.calls == 1 + 1 + 3 + 1
    assert list(network._forward_hooks.values()) == [watcher]


class Noting(nn.Module):
    """A network that keeps what it saw, as many do for a later look."""

    treats_images_alone = True

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(60, 8), nn.Linear(8, CLASSES)
        self.seen: Tensor | None = None
        self.all_seen: dict[str, object] = {}

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.inner(x.flatten(1)).relu()
        self.all_seen = {"layers": [self.seen, self.seen + 1]}
        self.all_seen["itself"] = self.all_seen
        logits: Tensor = self.outer(self.seen)
        return logits


def normed() -> nn.Module:
    """Its weight is made before every pass by a hook of torch's own, without which it would stay as it was."""
    return nn.Sequential(nn.Flatten(), nn.utils.spectral_norm(nn.Linear(60, 8)), nn.ReLU(), nn.Linear(8, CLASSES))


@pytest.mark.parametrize("make", [Noting, normed])
@any_method
def test_networks_that_hold_values_of_a_pass_can_be_copied(method: str, make: Make) -> None:
    torch.manual_seed(0)
    network = make().double()
    first, second = learner(method, network), learner(method, copy.deepcopy(network))
    observe(first)
    observe(second, 2)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for number in range(4, 8):
        assert_same(second.observe(*batch(number)), first.observe(*batch(number)))


def test_hooks_of_torch_stay_on_the_copy() -> None:
    """Spectral norm is a hook: without it, the teacher would have the weight of the time it was first copied."""
    torch.manual_seed(0)
    network = normed().double()
    student = ARM(
        network, ARMConfig(recalled_images=2, ascent_steps=2, total_variation=0.0, lag=LagConfig("every", 1, start=0))
    )
    observe(student)
    teacher, x = student.teacher.network, batch(9)[0]
    assert teacher is not None
    before = teacher(x)
    with torch.no_grad():
        dict(teacher.named_parameters())["1.weight_orig"].copy_(torch.randn(8, 60))
    assert not torch.allclose(teacher(x), before)
