"""Maximally interfered retrieval: what is chosen, against a search by brute force."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from autorecall import ERMIR, BoundaryConfig, ERMIRConfig

from .algorithm1 import log_softmax
from .worlds import CLASSES, assert_same, batch, conv, mlp

SETTINGS = ERMIRConfig(
    kept_images=14, candidates=8, replayed=3, learning_rate=0.2, tasks=BoundaryConfig("every", every=2)
)
VARIANTS = {
    "plain": SETTINGS,
    "all candidates": replace(SETTINGS, candidates=50),
    "all candidates replayed": replace(SETTINGS, candidates=5, replayed=5),
    "symmetric": replace(SETTINGS, input_range="symmetric"),
}
Make = Callable[[], nn.Module]
every_network = pytest.mark.parametrize("make", [mlp, conv])


class Watched(ERMIR):
    """Notes what it chose, and what the choice was made from."""

    def __init__(self, network: nn.Module, config: ERMIRConfig, seed: int = 0) -> None:
        super().__init__(network, config, seed=seed)
        self.chosen: list[int] = []
        self.drawn: list[int] = []
        self.before, self.after = dict[str, Tensor](), dict[str, Tensor]()
        self.gradients_kept = True

    def choose(self, like: Tensor) -> Tensor:
        generator = torch.Generator()
        generator.set_state(self.generator.get_state())
        self.drawn = self.reservoir.draw(self.config.candidates, self.boundaries.tasks, generator).tolist()
        self.before = copy.deepcopy(self.network.state_dict())
        gradients = [p.grad.clone() for p in self.network.parameters() if p.grad is not None]
        slots = super().choose(like)
        self.after = copy.deepcopy(self.network.state_dict())
        kept = [p.grad for p in self.network.parameters() if p.grad is not None]
        self.gradients_kept = all(torch.equal(old, new) for old, new in zip(gradients, kept, strict=True))
        self.chosen = slots.tolist()
        return slots


def losses(network: nn.Module, images: Tensor, labels: Tensor) -> list[float]:
    return losses_of(network(images), labels)


def losses_of(logits: Tensor, labels: Tensor) -> list[float]:
    outputs = log_softmax(logits.detach())
    return [-float(outputs[i, labels[i]]) for i in range(len(labels))]


def stepped(network: nn.Module, x: Tensor, y: Tensor, rate: float) -> nn.Module:
    """A copy after one real SGD step on the batch."""
    ahead = copy.deepcopy(network)
    optimizer = torch.optim.SGD(ahead.parameters(), lr=rate)
    nn.functional.cross_entropy(ahead(x), y).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return ahead


def shown(x: Tensor, config: ERMIRConfig) -> Tensor:
    return 2 * x - 1 if config.input_range == "symmetric" else x


def worst(slots: list[int], rises: list[float], count: int) -> list[int]:
    ranked = sorted(range(len(slots)), key=lambda k: -rises[k])
    return [slots[k] for k in ranked[:count]]


@pytest.mark.parametrize("variant", VARIANTS)
@every_network
def test_images_that_a_real_step_would_hurt_most_are_replayed(make: Make, variant: str) -> None:
    network, config = make(), VARIANTS[variant]
    learner, choices = Watched(network, config, seed=1), 0
    for number in range(6):
        x, y = batch(number)
        before, kept = copy.deepcopy(network), copy.deepcopy(learner.reservoir)
        learner.observe(x, y)
        if number < 2:
            assert learner.chosen == []
            continue
        images, labels = kept.batch(torch.tensor(learner.drawn), x)
        assert set(kept.tasks[learner.drawn].tolist()) <= set(range(1, number // 2 + 1))
        ahead = stepped(before, shown(x, config), y, config.learning_rate)
        now, then = (losses(n, shown(images, config), labels) for n in (before, ahead))
        expected = worst(learner.drawn, [b - a for a, b in zip(now, then, strict=True)], config.replayed)
        assert learner.chosen == expected, f"batch {number}"
        choices += len(expected) < len(learner.drawn)
    assert choices or config.candidates <= config.replayed


@every_network
def test_rise_is_measured_from_the_lowest_loss_remembered(make: Make) -> None:
    """Remembered outputs start at zero, are replaced where the loss is lower now, and go with their image."""
    network, config = make(), replace(SETTINGS, remember_outputs=True)
    learner = Watched(network, config, seed=2)
    remembered: dict[int, Tensor] = {}
    replaced = kept_longer = overwritten = differs = 0
    for number in range(12):
        x, y = batch(number)
        before, kept = copy.deepcopy(network), copy.deepcopy(learner.reservoir)
        learner.observe(x, y)
        if number >= 2:
            slots = learner.drawn
            images, labels = kept.batch(torch.tensor(slots), x)
            ahead = stepped(before, x, y, config.learning_rate)
            outputs = before(images).detach()
            now, then = losses_of(outputs, labels), losses(ahead, images, labels)
            old = [remembered.get(slot, x.new_zeros(CLASSES)) for slot in slots]
            earlier = losses_of(torch.stack(old), labels)
            lowest = [min(a, b) for a, b in zip(now, earlier, strict=True)]
            rises = [b - a for a, b in zip(lowest, then, strict=True)]
            assert learner.chosen == worst(slots, rises, config.replayed), f"batch {number}"
            differs += learner.chosen != worst(slots, [b - a for a, b in zip(now, then, strict=True)], config.replayed)
            for k, slot in enumerate(slots):
                if now[k] < earlier[k]:
                    replaced += slot in remembered
                    remembered[slot] = outputs[k]
                else:
                    kept_longer += slot in remembered
        for slot in range(len(learner.reservoir)):
            new = slot >= len(kept) or not torch.equal(image(learner, slot), image_of(kept.images, slot))
            if new:
                overwritten += remembered.pop(slot, None) is not None
        expected = torch.zeros(config.kept_images, CLASSES, dtype=torch.float64)
        for slot, logits in remembered.items():
            expected[slot] = logits
        torch.testing.assert_close(learner.remembered, expected, rtol=0, atol=1e-12)
    assert replaced
    assert kept_longer
    assert overwritten
    assert differs, "the choice is another one than without remembering"


def image(learner: ERMIR, slot: int) -> Tensor:
    return image_of(learner.reservoir.images, slot)


def image_of(images: Tensor | None, slot: int) -> Tensor:
    assert images is not None
    return images[slot]


@every_network
def test_choosing_changes_nothing_but_running_batch_statistics(make: Make) -> None:
    network = make()
    learner = Watched(network, SETTINGS)
    for number in range(4):
        learner.observe(*batch(number))
        assert learner.gradients_kept
        changed = {name for name in learner.before if not torch.equal(learner.before[name], learner.after[name])}
        buffers = {name for name, _ in network.named_buffers()} if number >= 2 else set()
        assert changed == buffers, f"batch {number}"
    for name, value in learner.after.items():
        if name.endswith("num_batches_tracked"):
            assert value == learner.before[name] + 1, "one pass of the candidates"


def test_state_remembers_outputs() -> None:
    config = replace(SETTINGS, remember_outputs=True)
    first, second = ERMIR(mlp(), config, seed=4), ERMIR(mlp(3), config, seed=5)
    for number in range(4):
        first.observe(*batch(number))
    assert first.remembered.any()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for number in range(4, 8):
        assert_same(second.observe(*batch(number)), first.observe(*batch(number)))
    assert_same(second.state_dict(), first.state_dict())
