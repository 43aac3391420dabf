"""More outputs for a network that has learned some: for classes that nobody knew of when it was made.

A new output begins a little below the mean of those there are. So it is never the largest, and no image changes its
class. It must be below, because the teacher's answers would make every recalled image a bit of a new class; far below,
the new class could hardly be learned. scripts/new_outputs.py tries several.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...checks import brief
from ...errors import InputError
from .undo import Undo

MOST_OUTPUTS = 100_000  # any more is a typo
BELOW = 1.0  # the mean logit
NOT_THE_LAST = (
    "outputs could not be added, because the nn.Linear that was defined last does not give the logits; give the "
    "network a method output_layers() that returns the layers they come from"
)


def output_layers(network: nn.Module) -> list[nn.Linear]:
    """The layers that give the logits: those that a network names in `output_layers`, or else the last one defined."""
    named = getattr(network, "output_layers", None)
    if callable(named):
        return list(named())
    if isinstance(network, nn.Linear):
        return [network]
    parts = [part for part in network.children() if next(part.parameters(), None) is not None]
    if not parts:
        raise InputError(
            f"the network ends in {type(network).__name__}, not in an nn.Linear, so its outputs cannot be counted or "
            "added; give it a method output_layers() that returns the layers they come from"
        )
    return output_layers(parts[-1])


def check_outputs(outputs: int, present: int) -> None:
    """Refuse a number of outputs that cannot be grown to."""
    if type(outputs) is not int or not present <= outputs <= MOST_OUTPUTS:
        raise InputError(
            f"{brief(outputs)} outputs are asked for and the network has {present}; expected {present} to "
            f"{MOST_OUTPUTS:,}"
        )


@torch.no_grad()
def set_outputs(network: nn.Module, outputs: int, optimizer: Optimizer | None = None) -> Undo:
    """Add outputs, or cut some off; return the way back. Parameters stay the same objects, which optimizers know."""
    ways_back: list[Undo] = []
    layers = output_layers(network)
    if any("weight" not in layer._parameters for layer in layers):
        raise InputError(
            "outputs cannot be added to a layer whose weights are computed from others, as weight norm does; use a "
            "plain nn.Linear"
        )
    for layer in layers:
        ways_back.append(partial(setattr, layer, "out_features", layer.out_features))
        layer.out_features = outputs
        for p in (layer.weight, layer.bias):
            if p is None:
                continue
            before, new = p.data, p.data.double().mean(0) - (BELOW if p is layer.bias else 0.0)
            ways_back.append(partial(setattr, p, "data", before))
            p.data, p.grad = _resized(before, outputs, new.to(before)), None
            state = {} if optimizer is None else optimizer.state.get(p, {})
            for name, value in state.items():
                if isinstance(value, Tensor) and (value.shape == before.shape or name == "row_var"):  # or momentum
                    ways_back.append(partial(state.__setitem__, name, value))
                    state[name] = _resized(value, outputs, torch.zeros_like(value[0]))
    return partial(_all, ways_back)


def _resized(rows: Tensor, count: int, new: Tensor) -> Tensor:
    return torch.cat([rows[:count], new.expand(max(0, count - len(rows)), *new.shape)])


def _all(ways_back: list[Undo]) -> None:
    for go_back in ways_back:
        go_back()
