"""Means and scatter batch by batch against all rows at once."""

from __future__ import annotations

import hypothesis.strategies as st
import torch
from hypothesis import given

from autorecall.networks.moments import merged


@given(st.lists(st.integers(1, 7), min_size=1, max_size=6))
def test_batches_give_the_mean_and_scatter_of_all_rows(sizes: list[int]) -> None:
    rows = torch.randn(sum(sizes), 3, generator=torch.Generator().manual_seed(len(sizes)), dtype=torch.float64)
    mean, scatter, count = torch.zeros(3, dtype=torch.float64), torch.zeros(3, 3, dtype=torch.float64), 0
    for part in torch.split(rows, sizes):
        mean, deviations = merged(mean, count, part)
        scatter, count = scatter + deviations.T @ deviations, count + len(part)
    expected = sum((torch.outer(row - rows.mean(0), row - rows.mean(0)) for row in rows), torch.zeros(3, 3))
    torch.testing.assert_close(mean, rows.mean(0))
    torch.testing.assert_close(scatter, expected.double())


def test_single_precision_will_do_where_means_are_large() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = 1000 + torch.randn(20_000, 2, generator=generator)
    mean, scatter, count = torch.zeros(2), torch.zeros(2, 2), 0
    for part in torch.split(rows, 10):
        mean, deviations = merged(mean, count, part)
        scatter, count = scatter + deviations.T @ deviations, count + len(part)
    exact = rows.double()
    torch.testing.assert_close(mean.double(), exact.mean(0), rtol=1e-6, atol=0)
    torch.testing.assert_close(scatter.double() / count, exact.T.cov(correction=0), rtol=1e-3, atol=1e-3)
