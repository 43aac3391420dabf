"""What recalled images start as, and how they are counted."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from autorecall.recall.batch import Initial, Recalled, choose, initial_images, per_image

X = torch.rand(6, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def start(count: int, keep_copies: bool = False, initial: Initial = "real", x: Tensor = X, seed: int = 0) -> Recalled:
    return initial_images(x, count, initial, torch.Generator().manual_seed(seed), keep_copies)


def origins_of(recalled: Recalled) -> Tensor:
    assert recalled.origins is not None
    return recalled.origins


@given(count=st.integers(1, 40), seed=st.integers(0, 10**6))
def test_distinct_images_stand_for_the_copies_that_would_be_kept(count: int, seed: int) -> None:
    kept, merged = start(count, keep_copies=True, seed=seed), start(count, seed=seed)
    assert kept.counts.tolist() == [1] * count
    origins = origins_of(merged)
    assert origins.repeat_interleave(merged.counts).tolist() == sorted(origins_of(kept).tolist())
    assert len(set(origins.tolist())) == len(origins) == len(merged.images) <= min(count, len(X))
    for recalled in (kept, merged):
        assert torch.equal(recalled.images, X[origins_of(recalled)])
        assert recalled.total == count


@given(available=st.integers(1, 30), count=st.integers(1, 40), seed=st.integers(0, 10**6))
def test_nothing_is_chosen_twice_where_there_is_enough(available: int, count: int, seed: int) -> None:
    chosen = choose(available, count, torch.Generator().manual_seed(seed)).tolist()
    assert len(chosen) == count
    assert set(chosen) <= set(range(available))
    if count <= available:
        assert len(set(chosen)) == count


@pytest.mark.parametrize("count", [2, 20])
def test_every_number_is_chosen_equally_often(count: int) -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.cat([choose(5, count, generator) for _ in range(10_000 // count)]).bincount(minlength=5)
    assert (drawn - 2000).abs().max() < 200, "five standard deviations"


def test_noise_is_uniform_and_owes_nothing_to_the_real_images() -> None:
    recalled, other = start(400, initial="noise"), start(400, initial="noise", x=1 - X)
    images = recalled.images
    assert torch.equal(images, other.images)
    assert images.dtype == torch.float64
    assert images.shape == (400, 2, 3)
    assert 0 <= float(images.min()) < 0.05
    assert 0.95 < float(images.max()) < 1
    assert float(images.mean()) == pytest.approx(0.5, abs=0.03)
    assert recalled.counts.tolist() == [1] * 400
    assert recalled.origins is None


@pytest.mark.parametrize("initial", ["real", "noise"])
def test_the_generator_alone_decides(initial: Initial) -> None:
    assert torch.equal(start(4, initial=initial).images, start(4, initial=initial).images)
    assert not torch.equal(start(4, initial=initial).images, start(4, initial=initial, seed=1).images)


def test_weights_are_shares_of_the_batch() -> None:
    recalled = Recalled(X[:3].float(), torch.tensor([1, 5, 2]), None)
    assert recalled.total == 8
    assert recalled.weights.tolist() == [1 / 8, 5 / 8, 2 / 8]
    assert recalled.weights.dtype == torch.float32
    assert recalled.multiplicities is recalled.counts


def test_images_that_all_occur_once_need_no_counting() -> None:
    assert Recalled(X, torch.ones(6, dtype=torch.int64), None).multiplicities is None


@pytest.mark.parametrize("shape", [(6,), (6, 2), (6, 2, 3), (6, 2, 3, 4)])
def test_numbers_per_image_multiply_their_image(shape: tuple[int, ...]) -> None:
    images, factors = torch.rand(shape), torch.arange(6)
    expected = torch.stack([factor * image for factor, image in zip(factors, images, strict=True)])
    assert torch.equal(per_image(factors, images) * images, expected)
