"""How far the statistics of a batch are from the running ones of batch-norm layers, which inversion keeps small."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .batch import Recalled
from .copies import WEIGHTED


@contextmanager
def statistics_of(network: nn.Module, batch: Recalled) -> Iterator[list[Tensor]]:
    """Inside, every pass of this batch appends, for each batch-norm layer, |batch mean − running mean|₂ +
    |batch variance − running variance|₂, read before the pass updates the running ones; variances are unbiased."""
    distances: list[Tensor] = []

    def read(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        (x,) = inputs
        values, shares = x.reshape(*x.shape[:2], -1), batch.weights.to(x)
        count = batch.total * values.shape[2]
        mean = torch.tensordot(shares, values.mean(2), dims=1)
        spread = (values - mean[:, None]).square().mean(2)
        variance = torch.tensordot(shares, spread, dims=1) * (count / max(count - 1, 1))
        running_mean, running_variance = layer.get_buffer("running_mean"), layer.get_buffer("running_var")
        distances.append((mean - running_mean).norm() + (variance - running_variance).norm())

    layers = [m for m in network.modules() if isinstance(m, WEIGHTED) and m.running_mean is not None]
    handles = [layer.register_forward_pre_hook(read) for layer in layers]
    try:
        yield distances
    finally:
        for handle in handles:
            handle.remove()
