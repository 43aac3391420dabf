"""Which images train, validate and test, counted a second time by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autorecall.data.shares import share_out, shares_of, split_counts, wrong_shares

from .conftest import Refused


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=60),
    st.sampled_from([0.0, 0.1, 0.2, 0.5, 0.9]),
    st.sampled_from([0.0, 0.04, 0.09]),
)
def test_of_every_class_the_first_train_the_next_validate_and_the_last_test(
    labels: list[int], test_share: float, val_share: float
) -> None:
    train, val, test = share_out(np.array(labels), test_share, val_share)
    for label in set(labels):
        mine = [index for index, other in enumerate(labels) if other == label]
        tests = round(test_share * len(mine))
        if test_share and tests == 0:
            tests = 1
        if tests == len(mine):
            tests -= 1
        vals = min(round(val_share * len(mine)), len(mine) - tests - 1)
        trains = len(mine) - tests - vals
        assert [index for index in mine if train[index]] == mine[:trains]
        assert [index for index in mine if val[index]] == mine[trains : trains + vals]
        assert [index for index in mine if test[index]] == mine[trains + vals :]
        assert trains >= 1
    assert ((train.astype(int) + val + test) == 1).all()


@pytest.mark.parametrize("count", range(2, 12))
@pytest.mark.parametrize(("test", "val"), [(0.5, 0.49), (0.98, 0.01), (0.01, 0.98), (0.3, 0.3)])
def test_a_few_images_always_leave_one_to_train_and_one_to_test(count: int, test: float, val: float) -> None:
    trains, vals, tests = split_counts(count, test, val)
    assert trains + vals + tests == count
    assert min(trains, tests) >= 1
    assert vals >= 0


@pytest.mark.parametrize(
    ("test", "val", "sentence"),
    [
        (0.0, None, "test_share is 0.0; expected a number above 0 and below 1"),
        (1.0, None, "test_share is 1.0"),
        (math.nan, None, "test_share is nan"),
        (-0.1, None, "test_share is -0.1"),
        (None, -0.1, "val_share is -0.1; expected a number of at least 0 and below 1"),
        (None, math.inf, "val_share is inf"),
        (0.5, 0.5, "test_share and val_share add up to 1; expected less than 1"),
        (None, 0.8, "test_share and val_share add up to 1; expected less than 1"),
        (0.97, None, "test_share and val_share add up to 1.01"),
    ],
)
def test_shares_that_cannot_be_taken(test: float | None, val: float | None, sentence: str) -> None:
    assert str(wrong_shares(test, val)).startswith(sentence)


@pytest.mark.parametrize(("test", "val"), [(None, None), (0.01, 0.0), (0.5, 0.4), (0.96, 0.03), (None, 0.0)])
def test_shares_that_can(test: float | None, val: float | None) -> None:
    assert wrong_shares(test, val) is None


def test_what_is_there_is_not_taken_from_the_training_images(refused: Refused) -> None:
    assert shares_of("x", (), None, None) == (0.2, 0.04)
    assert shares_of("x", (), 0.3, 0.0) == (0.3, 0.0)
    assert shares_of("x", ("train", "test"), None, None) == (0.0, 0.0)
    assert shares_of("x", ("train", "test"), None, 0.1) == (0.0, 0.1)
    assert shares_of("x", ("train",), 0.1, None) == (0.1, 0.0)
    assert shares_of("x", ("train", "val"), 0.1, None) == (0.1, 0.0)
    with refused("test_share is 0.1 but x has test images of its own; leave it out"):
        shares_of("x", ("train", "test"), 0.1, None)
    with refused("val_share is 0.0 but x has val images of its own; leave it out"):
        shares_of("x", ("train", "test", "val"), None, 0.0)
    with refused("x has training images but none to test; add them, or set test_share"):
        shares_of("x", ("train", "val"), None, None)
