"""A network for a while in another mode; and a copy of it. Both leave it as found."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from torch import Tensor, nn

Network = TypeVar("Network", bound=nn.Module)


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


def frozen_copy(network: Network) -> Network:
    """A copy that nobody trains or watches.

    Values that a forward pass left on a module, which torch refuses to copy with their graph, are shared without it.
    """
    left = (value for module in network.modules() for value in _tensors(vars(module)) if not value.is_leaf)
    with _without_user_hooks(network):
        return copy.deepcopy(network, {id(value): value.detach() for value in left}).requires_grad_(False)


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)


@contextmanager
def _without_user_hooks(network: nn.Module) -> Iterator[None]:
    """No hooks but torch's own inside: the user's watch their network, not a copy of it, and may not be copyable."""
    found = [
        (hooks, dict(hooks))
        for module in network.modules()
        for hooks in (
            module._forward_hooks,
            module._forward_pre_hooks,
            module._backward_hooks,
            module._backward_pre_hooks,
        )
    ]
    try:
        for hooks, all_of_them in found:
            for key, hook in all_of_them.items():
                # Weight norms of torch are hooks as well, without which the network would not be itself.
                if not type(hook).__module__.startswith("torch."):
                    del hooks[key]
        yield
    finally:
        for hooks, all_of_them in found:
            hooks.clear()
            hooks.update(all_of_them)
