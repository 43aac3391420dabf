"""Plain SGD is torch's, whatever is done to it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

from autorecall.learners.shared.plain_sgd import PlainSGD

KINDS = (SGD, PlainSGD)


def parameters() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape)) for shape in ((30, 20), (30,), (7, 3))]


def trained(optimizer: SGD, steps: int = 4) -> list[Tensor]:
    """Weights after steps along made-up gradients; the last parameter never has one."""
    generator = torch.Generator().manual_seed(1)
    found = optimizer.param_groups[0]["params"]
    for _ in range(steps):
        for p in found[:2]:
            p.grad = torch.randn(p.shape, generator=generator)
        optimizer.step()
    return [p.detach().clone() for p in found]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_step_is_that_of_torch_to_the_bit() -> None:
    torchs, plain = (trained(kind(parameters(), lr=0.3)) for kind in KINDS)
    assert same(torchs, plain)
    assert not same(torchs, [p.detach() for p in parameters()])


@pytest.mark.parametrize(
    "change",
    [
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"weight_decay": 0.1},
        {"maximize": True},
        {"lr": torch.tensor(0.2)},
        {"lr": 1},
    ],
)
def test_settings_changed_later_are_those_of_torch(change: dict[str, object]) -> None:
    found, as_it_was = [], trained(PlainSGD(parameters(), lr=0.3))
    for kind in KINDS:
        optimizer = kind(parameters(), lr=0.3)
        optimizer.param_groups[0].update(change)
        found.append(trained(optimizer))
    assert same(*found)
    assert not same(found[1], as_it_was)


@pytest.mark.parametrize("change", [{}, {"momentum": 0.9}])
def test_hooks_are_called_once_per_step(change: dict[str, object]) -> None:
    for kind in KINDS:  # torch's first, which leaves a hooked step behind
        called: list[str] = []
        optimizer = kind(parameters(), lr=0.3)
        optimizer.param_groups[0].update(change)
        optimizer.register_step_pre_hook(lambda *_, called=called: called.append("before"))
        optimizer.register_step_post_hook(lambda *_, called=called: called.append("after"))
        trained(optimizer, 2)
        assert called == ["before", "after"] * 2


def test_gradients_may_be_sparse() -> None:
    found = []
    for kind in KINDS:
        torch.manual_seed(0)
        table = nn.Embedding(9, 4, sparse=True)
        optimizer = kind(table.parameters(), lr=0.5)
        table(torch.tensor([1, 1, 7])).square().sum().backward()
        optimizer.step()
        found.append([table.weight.detach()])
    assert same(*found)


def test_rates_may_follow_a_schedule_and_losses_a_closure() -> None:
    found = []
    for kind in KINDS:
        optimizer = kind(parameters(), lr=0.3)
        schedule = StepLR(optimizer, 1, 0.5)
        trained(optimizer, 1)
        schedule.step()
        assert optimizer.param_groups[0]["lr"] == 0.15

        def loss(optimizer: SGD = optimizer) -> float:
            optimizer.zero_grad()
            total = sum(p.square().sum() for p in optimizer.param_groups[0]["params"])
            assert isinstance(total, Tensor)
            total.backward()  # type: ignore[no-untyped-call]
            return total.item()

        assert optimizer.step(loss) > 0
        found.append(trained(optimizer))
    assert same(*found)


@pytest.mark.parametrize("kinds", [KINDS, KINDS[::-1]])
def test_either_takes_the_state_of_the_other(kinds: tuple[type[SGD], type[SGD]]) -> None:
    one, other = (kind(parameters(), lr=rate) for kind, rate in zip(kinds, (0.3, 0.1), strict=True))
    other.load_state_dict(one.state_dict())
    assert other.state_dict() == one.state_dict()
    assert same(trained(one), trained(other))


def test_to_learn_and_save_does_not_import_the_compiler() -> None:
    program = """
import sys, torch
from autorecall import Naive
learner = Naive(torch.nn.Linear(3, 2))
learner.observe(torch.rand(4, 3), torch.tensor([0, 1, 0, 1]))
learner.load_state_dict(learner.state_dict())
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
