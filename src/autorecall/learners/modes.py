"""A network for a while in another mode; left as found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def training(network: nn.Module) -> Iterator[None]:
    """Train mode inside, every module's mode as found afterwards.

    A network that is in train mode already is left alone, so parts the user froze with `.eval()` stay frozen.
    """
    with _modes_as_found(network):
        if not network.training:
            network.train()
        yield


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Eval mode inside, every module's mode as found afterwards."""
    with _modes_as_found(network):
        network.eval()
        yield


@contextmanager
def _modes_as_found(network: nn.Module) -> Iterator[None]:
    found = [(module, module.training) for module in network.modules()]
    try:
        yield
    finally:
        for module, mode in found:
            module.training = mode
