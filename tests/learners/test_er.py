"""Experience replay against a literal one, with the images in a list and SGD by hand."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from autorecall import ER, BoundaryConfig, ERConfig, Naive, NaiveConfig

from .algorithm1 import log_softmax, sum_of
from .worlds import assert_same, batch, conv, mlp

SETTINGS = ERConfig(kept_images=9, learning_rate=0.07, replayed=4, tasks=BoundaryConfig("every", every=2))
VARIANTS = {
    "plain": SETTINGS,
    "more replayed than kept": replace(SETTINGS, kept_images=3, replayed=10),
    "three steps": replace(SETTINGS, steps_per_batch=3),
    "symmetric": replace(SETTINGS, input_range="symmetric"),
    "a task in one batch": replace(SETTINGS, tasks=BoundaryConfig("every", every=1)),
}
every_network = pytest.mark.parametrize("make", [mlp, conv])
Make = Callable[[], nn.Module]


class LiteralER:
    """Chaudhry et al. 2019 as facts.md has it; nothing shared with the package but the order of random draws."""

    def __init__(self, network: nn.Module, config: ERConfig, seed: int) -> None:
        self.network, self.config = network, config
        self.generator = torch.Generator().manual_seed(seed)
        self.slots: list[tuple[Tensor, int, int]] = []  # image, label, task
        self.batches = self.seen = 0

    def observe(self, x: Tensor, y: Tensor) -> None:
        assert self.config.tasks.every is not None
        task = self.batches // self.config.tasks.every
        self.batches += 1
        for _ in range(self.config.steps_per_batch):
            gradients = self.gradients(x, y)
            earlier = [slot for slot in self.slots if slot[2] < task]
            drawn = torch.randperm(len(earlier), generator=self.generator)[: self.config.replayed].tolist()
            if drawn:
                images = torch.stack([earlier[i][0] for i in drawn])
                labels = torch.tensor([earlier[i][1] for i in drawn])
                replayed = self.gradients(images, labels)
                gradients = [real + again for real, again in zip(gradients, replayed, strict=True)]
            with torch.no_grad():
                for p, gradient in zip(self.network.parameters(), gradients, strict=True):
                    p.sub_(self.config.learning_rate * gradient)
        for image, label in zip(x, y.tolist(), strict=True):
            self.seen += 1
            if len(self.slots) < self.config.kept_images:
                self.slots.append((image, label, task))
                continue
            place = int(torch.randint(self.seen, (), generator=self.generator))
            if place < len(self.slots):
                self.slots[place] = image, label, task

    def gradients(self, x: Tensor, y: Tensor) -> list[Tensor]:
        shown = 2 * x - 1 if self.config.input_range == "symmetric" else x
        outputs = log_softmax(self.network(shown))
        loss = sum_of([-outputs[i, y[i]] for i in range(len(y))]) / len(y)
        return list(torch.autograd.grad(loss, list(self.network.parameters())))


@pytest.mark.parametrize("variant", VARIANTS)
@every_network
def test_observe_is_one_step_along_the_sum_of_two_gradients(make: Make, variant: str) -> None:
    """Parameters and running batch statistics: each batch goes through the network by itself, the real one first."""
    network, config = make(), VARIANTS[variant]
    literal, learner = LiteralER(copy.deepcopy(network), config, seed=3), ER(network, config, seed=3)
    for number in range(6):
        learner.observe(*batch(number))
        literal.observe(*batch(number))
        assert_same(network.state_dict(), literal.network.state_dict(), 1e-12, f"batch {number}")
    assert literal.seen > config.kept_images


@every_network
def test_first_task_is_never_replayed(make: Make) -> None:
    replaying, plain = make(), make()
    learner = ER(replaying, replace(SETTINGS, tasks=BoundaryConfig("boundary")))
    naive = Naive(plain, NaiveConfig(SETTINGS.learning_rate))
    for number in range(4):
        assert math.isnan(learner.observe(*batch(number))["replayed_loss"])
        naive.observe(*batch(number))
    assert_same(replaying.state_dict(), plain.state_dict())
    learner.boundary()
    assert math.isfinite(learner.observe(*batch(4))["replayed_loss"])
    naive.observe(*batch(4))
    with pytest.raises(AssertionError):
        assert_same(replaying.state_dict(), plain.state_dict(), 1e-6)


def test_batch_is_fed_to_the_reservoir_once_whatever_the_steps() -> None:
    learner = ER(mlp(), replace(SETTINGS, kept_images=100, steps_per_batch=3))
    for number in range(5):
        learner.observe(*batch(number))
        assert learner.reservoir.seen == len(learner.reservoir) == learner.memory().images == 6 * (number + 1)
    expected = torch.cat([batch(number)[0] for number in range(5)])
    assert torch.equal(learner.reservoir.batch(torch.arange(30), expected)[0], expected)


def test_each_step_draws_anew() -> None:
    drawn: list[list[int]] = []

    class Watched(ER):
        def choose(self, like: Tensor) -> Tensor:
            slots = super().choose(like)
            drawn.append(sorted(slots.tolist()))
            return slots

    learner = Watched(mlp(), replace(SETTINGS, steps_per_batch=4))
    for number in range(3):
        learner.observe(*batch(number))
    assert drawn[:8] == [[]] * 8
    assert len({tuple(slots) for slots in drawn[8:]}) > 1


class Scale(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x - 1


@every_network
def test_symmetric_range_is_a_scaling_layer_in_front_in_observe_and_predict(make: Make) -> None:
    network, scaled = make(), make()
    learner = ER(network, replace(SETTINGS, input_range="symmetric"))
    other = ER(nn.Sequential(Scale(), scaled), SETTINGS)
    for number in range(4):
        assert_same(learner.observe(*batch(number)), other.observe(*batch(number)))
        assert torch.equal(learner.predict(batch(7)[0]), other.predict(batch(7)[0]))
    assert_same(network.state_dict(), scaled.state_dict())
    assert_same(learner.reservoir.state_dict(), other.reservoir.state_dict())


def test_users_optimizer_takes_one_step_along_the_sum() -> None:
    network = mlp()
    optimizer = torch.optim.Adam(network.parameters())
    learner = ER(network, replace(SETTINGS, steps_per_batch=2), optimizer)
    for number in range(3):
        learner.observe(*batch(number))
    assert {int(state["step"]) for state in optimizer.state.values()} == {6}
