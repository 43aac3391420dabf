"""Means and scatter matrices of rows, batch by batch (Chan et al. 1979).

The scatter of a set is the sum of its outer products around its mean. Deviations are taken from the mean of their own
batch, never from zero, so that single precision does where means are large and rows are many.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def merged(mean: Tensor, count: int, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The mean once these rows have joined `count` others, and the rows whose outer products their scatter grows by.

    The latter are the deviations from the rows' own mean, and one for the distance of that mean from the old one.

    >>> mean, deviations = merged(torch.tensor([1.0]), 2, torch.tensor([[3.0], [5.0]]))
    >>> mean, (deviations.T @ deviations)
    (tensor([2.5000]), tensor([[11.]]))
    """
    new = len(rows)
    own = rows.mean(0)
    shift = own - mean
    weight = math.sqrt(count * new / (count + new))
    return mean + shift * (new / (count + new)), torch.cat([rows - own, weight * shift[None]])
