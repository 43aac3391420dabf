"""Saved states: nested mappings and lists of tensors and plain values, nothing that would need a pickle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from torch import Tensor

from ..errors import InputError

State: TypeAlias = Mapping[str, object]


def savable(value: object) -> object:
    """A nested state with string keys and no tuples, which JSON and safetensors can hold."""
    if isinstance(value, Mapping):
        return {str(key): savable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [savable(inner) for inner in value]
    if value is None or isinstance(value, Tensor | int | float | str | bool):
        return value
    raise TypeError(f"cannot save a {type(value).__name__}")


def with_number_keys(state: State) -> dict[str, object]:
    """An optimizer's state with its parameter numbers as integers again."""
    restored: dict[str, object] = dict(state)
    restored["state"] = {int(key): inner for key, inner in mapping(state["state"]).items()}
    return restored


def mapping(value: object) -> State:
    """A part of a state that must be a mapping."""
    if not isinstance(value, Mapping):
        raise InputError(f"a saved state has {type(value).__name__} where a mapping belongs; it is damaged")
    return value


def tensor(value: object) -> Tensor:
    """A part of a state that must be a tensor."""
    if not isinstance(value, Tensor):
        raise InputError(f"a saved state has {type(value).__name__} where a tensor belongs; it is damaged")
    return value


def integer(value: object) -> int:
    """A part of a state that must be a whole number."""
    if not isinstance(value, int):
        raise InputError(f"a saved state has {type(value).__name__} where a whole number belongs; it is damaged")
    return value


def integers(value: object) -> list[int]:
    """A part of a state that must be a list of whole numbers."""
    if not isinstance(value, list):
        raise InputError(f"a saved state has {type(value).__name__} where a list belongs; it is damaged")
    return [integer(inner) for inner in value]
