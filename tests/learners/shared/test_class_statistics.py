"""Class statistics, batch by batch, against all vectors at once."""

from __future__ import annotations

import copy
import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from autorecall.errors import DivergedError, InputError
from autorecall.learners.shared.class_statistics import FLOOR, ClassStatistics

COUNT, SIZE, CLASSES = 20, 4, 5
CPU = torch.device("cpu")


def vectors() -> tuple[Tensor, Tensor]:
    """Twenty vectors; class 1 has none, class 3 has one."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(COUNT, SIZE, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 2.0, 3.0, 0.5]) + 5
    return rows, torch.tensor([0, 2, 4, 3, *[0, 2, 4, 2] * 4])


def filled(covariances: bool = True) -> ClassStatistics:
    statistics = ClassStatistics(covariances)
    statistics.add(*vectors(), CLASSES)
    return statistics


@given(st.permutations(range(COUNT)), st.lists(st.integers(1, COUNT), min_size=1, max_size=COUNT))
def test_any_order_and_any_batches_give_the_same(order: list[int], sizes: list[int]) -> None:
    rows, labels = vectors()
    statistics, left = ClassStatistics(covariances=True), torch.tensor(order)
    for size in [*sizes, COUNT]:
        if len(left):
            statistics.add(rows[left[:size]], labels[left[:size]], CLASSES)
            left = left[size:]
    assert statistics.counts.tolist() == [5, 0, 9, 1, 5]
    assert statistics.scatters is not None
    for label in (0, 2, 3, 4):
        own = rows[labels == label]
        torch.testing.assert_close(statistics.means[label], own.sum(0) / len(own), rtol=0, atol=1e-12)
        scatter = sum((torch.outer(row - own.mean(0), row - own.mean(0)) for row in own), torch.zeros(SIZE, SIZE))
        torch.testing.assert_close(statistics.scatters[label], scatter, rtol=0, atol=1e-12)
    assert not statistics.means[1].any()


def test_a_class_with_one_vector_is_its_mean() -> None:
    rows, _ = vectors()
    assert torch.equal(filled().means[3], rows[3])


@pytest.mark.parametrize("shared", [0.0, 0.3, 1.0])
def test_covariances_are_mixed_with_that_of_all_classes(shared: float) -> None:
    rows, labels = vectors()
    centred = rows.clone()
    for label in range(CLASSES):
        centred[labels == label] -= rows[labels == label].mean(0)
    common = centred.T @ centred / COUNT
    own = centred[labels == 4].T @ centred[labels == 4] / 5
    floor = FLOOR * common.trace() / SIZE * torch.eye(SIZE, dtype=torch.float64)
    found = filled().covariances(torch.tensor([3, 4]), shared)
    torch.testing.assert_close(found[1], (1 - shared) * own + shared * common + floor, rtol=0, atol=1e-12)
    torch.testing.assert_close(found[0], shared * common + floor, rtol=0, atol=1e-12)
    assert bool(torch.linalg.cholesky(found).isfinite().all())


def test_equal_vectors_have_a_covariance_that_can_be_drawn_from() -> None:
    statistics = ClassStatistics(covariances=True)
    statistics.add(torch.ones(3, SIZE), torch.zeros(3, dtype=torch.int64), CLASSES)
    factor = torch.linalg.cholesky(statistics.covariances(torch.tensor([0]), 0.3))
    assert 0 < float(factor.max()) < 1e-3


def test_numbers_count_means_and_covariances() -> None:
    assert ClassStatistics(covariances=True).numbers() == 0
    assert filled(covariances=False).numbers() == CLASSES * SIZE
    assert filled().numbers() == CLASSES * (SIZE + SIZE**2)


def test_a_batch_that_overflows_changes_nothing() -> None:
    statistics = ClassStatistics(covariances=True)
    statistics.add(torch.ones(2, SIZE), torch.tensor([0, 1]), CLASSES)
    before = copy.deepcopy(statistics.state_dict())
    huge = torch.tensor([[1e30] * SIZE, [-1e30] * SIZE])
    with pytest.raises(DivergedError, match="a class covariance became inf"):
        statistics.add(huge, torch.tensor([0, 0]), CLASSES)
    after = statistics.state_dict()
    for name, value in before.items():
        found = after[name]
        assert isinstance(value, Tensor)
        assert isinstance(found, Tensor)
        assert torch.equal(found, value)


def test_a_saved_state_stays_as_it_was_and_can_be_loaded() -> None:
    one, other = filled(), ClassStatistics(covariances=True)
    state = one.state_dict()
    kept = copy.deepcopy(state)
    other.load_state_dict(state, CPU)
    one.add(*vectors(), CLASSES)
    other.add(*vectors(), CLASSES)
    assert torch.equal(one.means, other.means)
    for name in ("counts", "means", "scatters"):
        value, before = state[name], kept[name]
        assert isinstance(value, Tensor)
        assert isinstance(before, Tensor)
        assert torch.equal(value, before)


@pytest.mark.parametrize(
    "damage",
    [
        {"counts": torch.zeros(CLASSES)},
        {"counts": torch.full((CLASSES,), -1)},
        {"counts": torch.tensor(5)},
        {"means": torch.zeros(CLASSES, SIZE, dtype=torch.int64)},
        {"means": torch.zeros(CLASSES, SIZE + 1, dtype=torch.float64)},
        {"scatters": torch.zeros(CLASSES, SIZE, SIZE)},
        {"scatters": torch.zeros(CLASSES, SIZE, SIZE + 1, dtype=torch.float64)},
        {"scatters": None},
        {"means": math.nan},
    ],
)
def test_a_damaged_state_is_refused(damage: dict[str, object]) -> None:
    statistics = filled()
    with pytest.raises(InputError, match="it is damaged"):
        ClassStatistics(covariances=True).load_state_dict(statistics.state_dict() | damage, CPU)
