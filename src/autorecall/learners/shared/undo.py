"""Ways back to how things were before a batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

Undo: TypeAlias = Callable[[], None]


class KeptBuffers:
    """The buffers of modules, such as running statistics, with a copy of their values."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._found = [
            (module._buffers, name, buffer, buffer.clone())
            for module in modules
            for name, buffer in module._buffers.items()
            if buffer is not None and not is_lazy(buffer)
        ]

    def now(self) -> list[Tensor]:
        """What the modules have in their place; a module may change a buffer or replace it."""
        return [found for holder, name, _, _ in self._found if (found := holder[name]) is not None]

    def before(self) -> list[Tensor]:
        """The copies."""
        return [value for holder, name, _, value in self._found if holder[name] is not None]

    @torch.no_grad()
    def put_back(self) -> None:
        """Make all as it was."""
        for holder, name, buffer, value in self._found:
            holder[name] = buffer.copy_(value)


def attributes(part: object) -> Undo:
    """Back to the attributes an object has now; what they hold must be replaced, not changed in place."""
    return partial(_set_attributes, part, dict(vars(part)))


def draws(generator: torch.Generator) -> Undo:
    """Back to the numbers that a generator would draw next."""
    return partial(_set_state, generator, generator.get_state())


def memory(network: nn.Module) -> Undo:
    """Back to the memory that the tensors of a network use now; it must not be written to."""
    return partial(_set_memory, [(t, t.data) for t in (*network.parameters(), *network.buffers())])


def training(network: nn.Module, optimizer: Optimizer) -> Undo:
    """Back to a network and its optimizer as they are now, from a copy of both."""
    states = copy.deepcopy((network.state_dict(), optimizer.state_dict()))
    return partial(_load, (network, optimizer), states)


def _set_attributes(part: object, found: dict[str, object]) -> None:
    vars(part).clear()
    vars(part).update(found)


def _set_state(generator: torch.Generator, state: Tensor) -> None:
    generator.set_state(state)


def _set_memory(tensors: Iterable[tuple[Tensor, Tensor]]) -> None:
    for tensor, before in tensors:
        tensor.data = before


def _load(parts: tuple[nn.Module, Optimizer], states: tuple[dict[str, Tensor], dict[str, object]]) -> None:
    parts[0].load_state_dict(states[0])
    parts[1].load_state_dict(states[1])
