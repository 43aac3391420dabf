"""Saved states: nested mappings and lists of tensors and plain values, nothing that would need a pickle."""

from __future__ import annotations

import copy
import math
from collections.abc import Container, Mapping
from typing import TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..errors import InputError

State: TypeAlias = Mapping[str, object]
COUNTERS = (torch.float32, torch.float64, torch.int64)  # dtypes that an optimizer counts its steps in
ROWS = ("row_var", "col_var")  # what Adafactor keeps of matrices: one number for each row, and for each column
SINGLE = ("mu_product", "mu", "eta")  # what NAdam and ASGD keep one number of per parameter


def savable(value: object) -> object:
    """A nested state with string keys and no tuples, which JSON and safetensors can hold."""
    if isinstance(value, Mapping):
        return {str(key): savable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [savable(inner) for inner in value]
    if value is None or isinstance(value, Tensor | int | float | str | bool):
        return value
    raise TypeError(f"cannot save a {type(value).__name__}")


def for_optimizer(optimizer: Optimizer, saved: State) -> dict[str, object]:
    """A saved state as `optimizer.load_state_dict` takes it: a copy, with numbers of parameters as keys.

    An optimizer takes any values, and fails at its next step: here they must be of the kind that it has.
    """
    own = optimizer.state_dict()["param_groups"]
    groups = [mapping(group) for group in sequence(saved["param_groups"])]
    if len(groups) != len(own):
        raise _damaged(f"{len(groups)} groups of parameters", f"{len(own)}")
    for group, mine in zip(groups, own, strict=True):
        for name, value in group.items():
            if name in mine and not (value == mine[name] if name == "params" else _alike(value, mine[name])):
                raise _damaged(f"{value!r:.40} as {name} of the optimizer", f"a value such as {mine[name]!r:.40}")
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    kept = {int(number): mapping(values) for number, values in mapping(saved["state"]).items()}
    for number, values in kept.items():
        for name, value in values.items():
            if not 0 <= number < len(trained) or not _belongs(name, value, trained[number]):
                raise _damaged(f"something else than {name} of a parameter", "that")
    # Groups may have settings of their own, and matrices are kept by rows and columns (Adafactor).
    group_of = [number for number, group in enumerate(optimizer.param_groups) for _ in group["params"]]
    kinds: dict[tuple[int, int], set[frozenset[tuple[str, str]]]] = {}
    for number, values in kept.items():
        found = frozenset((name, _kind(value)) for name, value in values.items())
        kinds.setdefault((group_of[number], trained[number].dim()), set()).add(found)
    if any(len(found) > 1 for found in kinds.values()):
        raise _damaged("other values for some parameters", "the same kind for all")
    filled = [{**mine, **group} for group, mine in zip(groups, own, strict=True)]  # versions of torch differ
    return copy.deepcopy({"state": kept, "param_groups": filled})


def _alike(value: object, mine: object) -> bool:
    if isinstance(value, list) and isinstance(mine, list | tuple):
        return len(value) == len(mine) and all(map(_alike, value, mine))
    if value is None or mine is None or isinstance(value, bool) or isinstance(mine, bool):
        return (value is None or isinstance(value, bool)) and (mine is None or isinstance(mine, bool))
    if isinstance(value, int | float) and isinstance(mine, int | float):
        return math.isfinite(value) and abs(value) < 2**63  # torch's limit for whole numbers
    return type(value) is type(mine) and (not isinstance(value, Tensor) or value.dim() == 0)


def _kind(value: object) -> str:
    return "number" if isinstance(value, int | float) else type(value).__name__


def _belongs(name: str, value: object, parameter: Tensor) -> bool:
    if name == "step" and isinstance(value, Tensor | int | float):
        counts = not isinstance(value, Tensor) or (value.shape == () and value.dtype in COUNTERS)
        return counts and float(value) >= 0
    if isinstance(value, Tensor) and name in SINGLE and value.dim() == 0:
        return value.is_floating_point()
    if isinstance(value, Tensor):
        sizes = zip(value.shape, parameter.shape, strict=False)
        fits = value.dim() == parameter.dim() and all(size in (1, own) for size, own in sizes)
        return value.is_floating_point() and (value.shape == parameter.shape or (fits and name in ROWS))
    return value is None or (isinstance(value, int | float) and math.isfinite(value) and abs(value) < 2**63)


def refuse_not_finite(state: object, except_for: Container[str] = (), name: str = "") -> None:
    """Refuse a state with a number that is not finite, which every later step would spread; but for these names."""
    if isinstance(state, Mapping):
        for key, inner in state.items():
            if key not in except_for:
                refuse_not_finite(inner, except_for, f"{name}.{key}" if name else key)
    elif isinstance(state, list):
        for number, inner in enumerate(state):
            refuse_not_finite(inner, except_for, f"{name}[{number}]")
    elif isinstance(state, Tensor) and not bool(state.isfinite().all()):
        raise _damaged(f"a number in {name:.80} that is not finite", "one that is")
    elif isinstance(state, float) and not math.isfinite(state):
        raise _damaged(f"{state} as {name:.80}", "a finite number")


def labels(value: object, classes: int, length: int | None = None) -> Tensor:
    """A part of a state that must be a tensor of class numbers."""
    found = tensor(value)
    if found.dtype != torch.int64 or found.dim() != 1 or length not in (None, len(found)):
        raise _damaged(
            f"{found.dtype} of shape {tuple(found.shape)}", f"labels{'' if length is None else f' for {length}'}"
        )
    if len(found) and not 0 <= int(found.min()) <= int(found.max()) < classes:
        raise _damaged(f"the label {int(found.max())}", f"0 to {classes - 1}")
    return found


def mapping(value: object) -> State:
    """A part of a state that must be a mapping."""
    if not isinstance(value, Mapping):
        raise _damaged(type(value).__name__, "a mapping")
    return value


def tensor(value: object) -> Tensor:
    """A part of a state that must be a tensor."""
    if not isinstance(value, Tensor):
        raise _damaged(type(value).__name__, "a tensor")
    return value


def integer(value: object, most: int = 2**62) -> int:
    """A part of a state that must be a count."""
    if type(value) is not int or not 0 <= value <= most:
        raise _damaged(f"{value!r:.40}", f"a whole number from 0 to {most}")
    return value


def integers(value: object) -> list[int]:
    """A part of a state that must be a list of counts."""
    return [integer(inner) for inner in sequence(value)]


def sequence(value: object) -> list[object]:
    """A part of a state that must be a list."""
    if not isinstance(value, list):
        raise _damaged(type(value).__name__, "a list")
    return value


def _damaged(found: str, expected: str) -> InputError:
    return InputError(f"a saved state has {found} where {expected} belongs; it is damaged")
