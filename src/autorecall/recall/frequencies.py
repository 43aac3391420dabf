"""The low frequencies of images: the first coefficients of a cosine transform along height and width."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from ..networks.fixed import cosines


def low_frequencies(images: Tensor, count: int) -> Tensor:
    """The `count` × `count` lowest frequencies of every channel, as (N, channels, count, count).

    An axis shorter than `count` has all of its frequencies.
    """
    down, across = (_cosines(size, count, images.dtype).to(images.device) for size in images.shape[2:])
    return down @ images @ across.T


def from_low_frequencies(coefficients: Tensor, height: int, width: int) -> Tensor:
    """Images of this size that have these low frequencies and no others: the inverse of `low_frequencies`."""
    rows, columns = coefficients.shape[2:]
    down = _cosines(height, rows, coefficients.dtype).to(coefficients.device)
    across = _cosines(width, columns, coefficients.dtype).to(coefficients.device)
    return down.T @ coefficients @ across


@cache
def _cosines(size: int, count: int, dtype: torch.dtype) -> Tensor:
    """As many rows as there are, rounded once."""
    return cosines(size, min(count, size), torch.float64).to(dtype)
