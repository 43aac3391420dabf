"""A copy of a network without gradients or user hooks: a teacher, or a look one step ahead."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from torch import Tensor, nn

Network = TypeVar("Network", bound=nn.Module)


def frozen_copy(network: Network) -> Network:
    """The copy.

    Tensors that a forward pass left on a module are shared, detached: torch refuses to copy them with their graph.
    """
    left = (value for module in network.modules() for value in _tensors(module) if not value.is_leaf)
    with _without_user_hooks(network):
        return copy.deepcopy(network, {id(value): value.detach() for value in left}).requires_grad_(False)


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    """The tensors that a module holds, also in lists and mappings, which may contain themselves."""
    left: list[object] = [vars(module)]
    known: set[int] = set()
    while left:
        value = left.pop()
        if id(value) in known:
            continue
        known.add(id(value))
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Mapping):
            left.extend(value.values())
        elif isinstance(value, list | tuple):
            left.extend(value)


@contextmanager
def _without_user_hooks(network: nn.Module) -> Iterator[None]:
    """Inside, no hooks but torch's own: the user's watch their network, not a copy, and may not be copyable."""
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
                # torch's weight norms are hooks, too, and the network needs them.
                if not type(hook).__module__.startswith("torch."):
                    del hooks[key]
        yield
    finally:
        for hooks, all_of_them in found:
            hooks.clear()
            hooks.update(all_of_them)
