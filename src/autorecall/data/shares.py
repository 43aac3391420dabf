"""Which images train, validate and test, where the data do not say so themselves: shares of every class."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from autorecall.checks import brief, is_finite
from autorecall.data.arrays import Labels, tail_of_each_class
from autorecall.errors import DataError

TEST_SHARE = 0.20
VAL_SHARE = 0.04


def wrong_shares(test_share: float | None, val_share: float | None) -> str | None:
    """Why these shares cannot be taken, in a sentence; None if they can."""
    if test_share is not None and not (is_finite(test_share) and 0 < test_share < 1):
        return f"test_share is {brief(test_share)}; expected a number above 0 and below 1"
    if val_share is not None and not (is_finite(val_share) and 0 <= val_share < 1):
        return f"val_share is {brief(val_share)}; expected a number of at least 0 and below 1"
    taken = (TEST_SHARE if test_share is None else test_share) + (VAL_SHARE if val_share is None else val_share)
    if taken >= 1:
        return f"test_share and val_share add up to {taken:.4g}; expected less than 1, as the rest is for training"
    return None


def shares_of(
    place: str, parts: Collection[str], test_share: float | None, val_share: float | None
) -> tuple[float, float]:
    """The shares of the training images to take for testing and validating.

    `parts` are those of train, test and val that the data have already; with none of them, all shares are taken.
    """
    if "train" not in parts:
        return TEST_SHARE if test_share is None else test_share, VAL_SHARE if val_share is None else val_share
    for part, share in (("test", test_share), ("val", val_share)):
        if part in parts and share is not None:
            raise DataError(f"{part}_share is {brief(share)} but {place} has {part} images of its own; leave it out")
    if "test" not in parts and test_share is None:
        raise DataError(
            f"{place} has training images but none to test; add them, or set test_share, such as 0.2, to take them "
            "from the training images"
        )
    return test_share or 0.0, val_share or 0.0


def split_counts(count: int, test_share: float = TEST_SHARE, val_share: float = VAL_SHARE) -> tuple[int, int, int]:
    """How many of a class train, validate and test: of two or more, at least one trains and, if any share is, tests.

    >>> split_counts(600), split_counts(100), split_counts(2)
    ((456, 24, 120), (76, 4, 20), (1, 0, 1))
    """
    test = min(max(1, round(test_share * count)), count - 1) if test_share else 0
    val = min(round(val_share * count), count - test - 1)
    return count - val - test, val, test


def share_out(
    labels: Labels, test_share: float, val_share: float
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which examples train, validate and test: of every class the first, the next and the last, in their order."""
    counts = [split_counts(count, test_share, val_share) if count else (0, 0, 0) for count in np.bincount(labels)]
    test = tail_of_each_class(labels, [test for _, _, test in counts])
    val = tail_of_each_class(labels, [val + test for _, val, test in counts]) & ~test
    return ~(val | test), val, test
