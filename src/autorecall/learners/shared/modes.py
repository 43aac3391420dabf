"""Switch a network's mode for a while."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn


@contextmanager
def training(network: nn.Module, layers: Sequence[nn.Module] = ()) -> Iterator[None]:
    """Train mode inside; every module's mode is restored. `layers` are all its modules, if they are at hand.

    A network already in train mode is left alone, so parts the user froze with `.eval()` stay frozen.
    """
    with _modes_as_found(layers or list(network.modules())):
        if not network.training:
            network.train()
        yield


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Eval mode inside; every module's mode is restored."""
    with _modes_as_found(list(network.modules())):
        network.eval()
        yield


@contextmanager
def _modes_as_found(layers: Sequence[nn.Module]) -> Iterator[None]:
    found = [module.training for module in layers]
    try:
        yield
    finally:
        for module, mode in zip(layers, found, strict=True):
            if module.training is not mode:  # setting an attribute of a module takes a while
                module.training = mode
