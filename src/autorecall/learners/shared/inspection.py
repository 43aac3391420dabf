"""What a learner asks of a network, its optimizer and its settings before and after a step; nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ... import precision
from ...errors import AutorecallError, InputError, reason
from ...networks.resnet import FEWEST_STRIDED
from .finite import all_finite, check_finite
from .modes import evaluating


def check_precision(kind: torch.dtype, device: torch.device) -> None:
    """Refuse half precision where it would kill the process."""
    if device.type == "cpu" and kind in precision.HALVES and not precision.works(kind):
        name = str(kind).removeprefix("torch.")
        raise InputError(f"{name} does not work on this machine: torch's own layers are killed there; use float32")


def check_optimized(optimizer: Optimizer, network: nn.Module, owner: str) -> None:
    """A DivergedError if a parameter that the optimizer trains, or something it keeps, is not finite."""
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    if all_finite(trained) and (not states or all_finite(states)):
        return
    names = {id(p): name for name, p in network.named_parameters()}
    for p in trained:
        check_finite(p, f"{owner}the parameter {names.get(id(p), 'of the optimizer')}")
    for p, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, Tensor):
                check_finite(value, f"{owner}{key} of the optimizer for {names.get(id(p), 'a parameter')}")


def name_of_buffer(name: str) -> str:
    """What a buffer is called in a message."""
    layer, _, last = name.rpartition(".")
    statistics = {"running_mean": "the running mean", "running_var": "the running variance"}
    if last not in statistics:
        return f"the buffer {name}"
    return f"{statistics[last]} of batch-norm layer {layer}" if layer else statistics[last]


def numbers_of(config: object, path: str) -> Iterator[tuple[str, float]]:
    """Every floating-point setting of a config, by its name on the command line."""
    if is_dataclass(config):
        for field in fields(config):
            yield from numbers_of(getattr(config, field.name), f"{path}.{field.name}")
    elif isinstance(config, float):
        yield path, config


def dies_in_channels_last(layer: nn.Module) -> bool:
    """Whether oneDNN's weight gradient of this layer would write past its memory; see `networks.resnet`."""
    return (
        isinstance(layer, nn.Conv2d)
        and tuple(layer.kernel_size) == (1, 1)
        and max(layer.stride) > 1
        and layer.in_channels // layer.groups < FEWEST_STRIDED
    )


def count_outputs(network: nn.Module, x: Tensor) -> int:
    """The number of logits per input, from one pass without side effects (eval mode, no gradient)."""
    with evaluating(network), torch.no_grad():
        try:
            logits = network(x[:1])
        except AutorecallError:
            raise
        except Exception as error:  # a user's network may raise anything
            raise InputError(
                f"the network cannot take {x.dtype} inputs of shape {tuple(x.shape[1:])}: {reason(error)}"
            ) from error
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != 1:
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(f"the network gave {found} for one input; expected logits of shape (1, classes)")
    return logits.shape[1]
