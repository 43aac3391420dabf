"""The reservoir: every image of a stream is kept equally often, and comes back as it went in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy.special import chdtrc
from torch import Tensor

from autorecall import GEM, BoundaryConfig, GEMConfig, ICaRL, ICaRLConfig
from autorecall.learners.shared.reservoir import Reservoir, memory_of, pack, unpack

from ..worlds import assert_same, batch, mlp

LENGTH = 12
BATCHES = {"one by one": [1] * LENGTH, "all at once": [LENGTH], "uneven": [3, 1, 6, 2]}


def numbered(first: int, count: int) -> tuple[Tensor, Tensor]:
    """Images and labels that are both their position in the stream."""
    positions = torch.arange(first, first + count)
    return (positions.float() / 255)[:, None], positions


def feed(reservoir: Reservoir, sizes: list[int], generator: torch.Generator, first: int = 0, task: int = 1) -> None:
    for size in sizes:
        reservoir.add(*numbered(first, size), task, generator)
        first += size


def assert_uniform(kept: Tensor, size: int, streams: int) -> None:
    """Chi-squared for samples of `size` without replacement, which vary less than independent draws."""
    share = size / len(kept)
    statistic = float((kept - streams * share).square().sum() / (streams * share * (1 - share)))
    freedom = len(kept) - 1
    assert chdtrc(freedom, statistic * freedom / len(kept)) > 1e-3, kept.tolist()


@pytest.mark.parametrize("sizes", BATCHES.values(), ids=BATCHES.keys())
@pytest.mark.parametrize("capacity", [1, 5])
def test_every_position_of_a_stream_is_kept_equally_often(capacity: int, sizes: list[int]) -> None:
    kept, streams = torch.zeros(LENGTH), 400
    for seed in range(streams):
        reservoir = Reservoir(capacity)
        feed(reservoir, sizes, torch.Generator().manual_seed(seed))
        assert len(set(reservoir.labels.tolist())) == len(reservoir) == capacity
        kept[reservoir.labels] += 1
    assert_uniform(kept, capacity, streams)


@pytest.mark.parametrize("before", [3, 5, 8])
def test_every_position_is_kept_equally_often_after_shrinking_too(before: int) -> None:
    """Shrunk before, while and after the reservoir is full, and fed on."""
    kept, streams = torch.zeros(LENGTH), 500
    for seed in range(streams):
        generator, reservoir = torch.Generator().manual_seed(seed), Reservoir(5)
        feed(reservoir, [before], generator)
        reservoir.shrink(2, generator)
        assert len(reservoir) == 2
        feed(reservoir, [4, LENGTH - before - 4], generator, first=before)
        assert len(set(reservoir.labels.tolist())) == len(reservoir) == 2
        kept[reservoir.labels] += 1
    assert_uniform(kept, 2, streams)


def test_reservoir_never_grows_by_shrinking() -> None:
    generator, reservoir = torch.Generator().manual_seed(0), Reservoir(3)
    reservoir.shrink(10, generator)
    feed(reservoir, [8], generator)
    assert len(reservoir) == 3


def test_reservoir_shrunk_to_nothing_keeps_nothing() -> None:
    generator, reservoir = torch.Generator().manual_seed(0), Reservoir(3)
    feed(reservoir, [2], generator)
    reservoir.shrink(0, generator)
    feed(reservoir, [8], generator, first=2)
    assert len(reservoir) == reservoir.memory().images == 0


def test_image_label_and_task_stay_together() -> None:
    generator, reservoir = torch.Generator().manual_seed(0), Reservoir(6)
    for task in range(4):
        feed(reservoir, [7, 3], generator, first=10 * task, task=task)
        images, labels = reservoir.batch(torch.arange(len(reservoir)), torch.zeros(1))
        torch.testing.assert_close(images[:, 0] * 255, labels.float())
        assert torch.equal(reservoir.tasks, labels // 10)


def test_slots_that_hold_a_new_image_are_returned() -> None:
    generator, reservoir = torch.Generator().manual_seed(0), Reservoir(4)
    assert reservoir.add(*numbered(0, 3), 1, generator) == [0, 1, 2]
    for first in range(3, 33, 3):
        before = [*reservoir.labels.tolist(), None]
        changed = reservoir.add(*numbered(first, 3), 1, generator)
        differs = {slot for slot, label in enumerate(reservoir.labels.tolist()) if label != before[slot]}
        assert set(changed) == differs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes_are_packed_without_loss(dtype: torch.dtype) -> None:
    images = (torch.arange(256, dtype=dtype) / 255).view(4, 1, 8, 8)
    packed = pack(images)
    assert packed.dtype == torch.uint8
    assert torch.equal(packed.flatten(), torch.arange(256, dtype=torch.uint8))
    assert torch.equal(unpack(packed, images), images)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.5, -1 / 255, 256 / 255, 1 / 256, 0.2 + 1e-7])
def test_floats_stay_floats(value: float, dtype: torch.dtype) -> None:
    images = torch.tensor([[0.0, 1.0, value]], dtype=dtype)
    packed = pack(images)
    assert torch.equal(packed, images)
    assert packed.dtype == dtype
    images.zero_()
    assert packed[0, 1] == 1, "the user's own memory is not kept"


@pytest.mark.parametrize("order", ["bytes floats bytes", "floats bytes bytes", "bytes bytes floats"])
def test_bytes_and_floats_mix_without_loss(order: str) -> None:
    generator, reservoir = torch.Generator().manual_seed(0), Reservoir(6)
    fed: list[Tensor] = []
    for kind in order.split():
        x = torch.rand(4, 2, 3, generator=generator)
        x = x if kind == "floats" else (255 * x).round() / 255
        reservoir.add(x, torch.arange(len(fed), len(fed) + 4), 1, generator)
        fed.extend(x)
        images, labels = reservoir.batch(torch.arange(len(reservoir)), x)
        assert torch.equal(images, torch.stack([fed[position] for position in labels.tolist()]))


def test_memory_counts_a_byte_a_value_of_bytes() -> None:
    generator, reservoir = torch.Generator().manual_seed(0), Reservoir(5)
    assert (reservoir.memory().images, reservoir.memory().image_bytes) == (0, 0)
    x = torch.randint(256, (7, 3, 4, 2), generator=generator).float() / 255
    reservoir.add(x[:2], torch.zeros(2, dtype=torch.int64), 1, generator)
    assert (reservoir.memory().images, reservoir.memory().image_bytes) == (2, 2 * 24)
    reservoir.add(x, torch.zeros(7, dtype=torch.int64), 1, generator)
    assert (reservoir.memory().images, reservoir.memory().image_bytes) == (5, 5 * 24)
    assert memory_of([torch.rand(3, 8), torch.zeros(2, 8, dtype=torch.uint8)]).image_bytes == 3 * 32 + 2 * 8


def test_state_goes_on_as_the_reservoir_it_was_taken_from() -> None:
    first, second = Reservoir(4), Reservoir(9)
    feed(first, [7], torch.Generator().manual_seed(0))
    state = first.state_dict()
    second.load_state_dict(state, 10)
    assert_same(second.state_dict(), state)
    feed(first, [20], torch.Generator().manual_seed(1), first=7, task=2)
    assert (second.tasks == 1).all(), "the loaded one is a copy"
    feed(second, [20], torch.Generator().manual_seed(1), first=7, task=2)
    assert (second.tasks == 2).any()
    assert_same(second.state_dict(), first.state_dict())


def test_state_of_an_empty_reservoir_goes_on() -> None:
    first, second = Reservoir(4), Reservoir(4)
    feed(second, [3], torch.Generator())
    second.load_state_dict(first.state_dict(), 10)
    assert len(second) == second.seen == 0
    feed(second, [3], torch.Generator().manual_seed(0))
    assert second.labels.tolist() == [0, 1, 2]


def test_draw_gives_different_images_of_earlier_tasks_alone() -> None:
    generator, reservoir = torch.Generator().manual_seed(0), Reservoir(30)
    for task in (1, 2, 3):
        feed(reservoir, [10], generator, first=10 * task, task=task)
    assert len(reservoir.draw(5, 1, generator)) == 0
    for before, earlier in ((2, range(10)), (3, range(20)), (4, range(30))):
        for count in (1, 5, 10, 25, 50):
            slots = reservoir.draw(count, before, generator).tolist()
            assert len(slots) == len(set(slots)) == min(count, len(earlier))
            assert set(slots) <= set(earlier)


def test_draw_is_uniform() -> None:
    generator, reservoir = torch.Generator().manual_seed(0), Reservoir(20)
    feed(reservoir, [12], generator, task=1)
    feed(reservoir, [8], generator, first=12, task=2)
    drawn, draws = torch.zeros(12), 500
    for _ in range(draws):
        drawn[reservoir.draw(4, 2, generator)] += 1
    assert_uniform(drawn, 4, draws)


SETTINGS: dict[Any, Any] = {ICaRL: ICaRLConfig, GEM: GEMConfig}


@pytest.mark.parametrize(("kind", "what"), [(ICaRL, "classes"), (GEM, "tasks")])
def test_it_is_said_when_too_few_images_are_kept_for_every_class_or_task(kind: Any, what: str) -> None:
    student = kind(mlp(), SETTINGS[kind](kept_images=2, tasks=BoundaryConfig("every", every=1)))
    student.observe(*batch_of(0))
    student.observe(*batch_of(1))
    assert student.memory().images == 2
    with pytest.warns(UserWarning, match=rf"^kept_images is 2 but there are 3 {what} now, so that no image is kept"):
        student.observe(*batch_of(2))
    assert student.memory().images == 0


def batch_of(label: int) -> tuple[Tensor, Tensor]:
    x, y = batch(label)
    return x, torch.full_like(y, label)
