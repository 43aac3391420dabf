"""One run as one typed value, and its way to JSON and back."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .errors import ConfigError
from .learners import LearnerConfig
from .networks import NetworkConfig
from .stream import StreamConfig

DatasetName = Literal["mnist", "mnist-full", "cifar10", "miniimagenet", "folder"]


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides the numbers of a run."""

    dataset: DatasetName
    """mnist is the embedded MNIST-5k of the paper; folder is your own, one sub-folder of images a class."""

    network: NetworkConfig
    """The network that is trained."""

    stream: StreamConfig
    """The order in which it sees the data."""

    learner: LearnerConfig
    """The method that trains it."""

    fraction: float = 1.0
    """Keep this first part of every task, for a quick look."""

    split: Literal["test", "val"] = "test"
    """What accuracy is measured on; choose hyper-parameters on val."""

    image_size: int | None = None
    """Height and width that images of the dataset folder are brought to; none: 32."""

    seed: int = 0
    """Seed of the initial weights, of the learner's draws and, where the stream has none of its own, of the order."""

    device: str = "cpu"
    """The torch device to train on, such as cpu or cuda."""

    threads: int | None = None
    """Threads that torch may use; none: as torch finds best. The same number gives the same result."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.fraction) and 0 < self.fraction <= 1):
            raise ConfigError(f"fraction is {self.fraction}; expected a number above 0 and at most 1")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed is {self.seed}; expected a whole number from 0 to 2**63 - 1")
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"threads is {self.threads}; expected at least 1")
        if self.image_size is not None and self.dataset != "folder":
            raise ConfigError(f"image_size is {self.image_size} but {self.dataset} has a size of its own; leave it out")
        if self.image_size is not None and not 1 <= self.image_size <= 4096:
            raise ConfigError(f"image_size is {self.image_size}; expected 1 to 4096")


def to_json(config: object) -> dict[str, object]:
    """A config as plain JSON values; where several kinds are possible, `kind` or `method` says which one it is."""
    assert dataclasses.is_dataclass(config)
    values: dict[str, object] = {tag: getattr(config, tag) for tag in ("kind", "method") if hasattr(config, tag)}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            value = to_json(value)
        values[field.name] = list(value) if isinstance(value, tuple) else value
    return values


def from_json(values: Mapping[str, object]) -> RunConfig:
    """A config from what `to_json` gave; every wrong, missing or unknown field gives one sentence."""
    config = _decode(RunConfig, values, "config")
    assert isinstance(config, RunConfig)
    return config


def differences(config: object, other: object, prefix: str = "") -> dict[str, object]:
    """The fields of `config` that differ from `other`, under their command-line names."""
    mine, theirs = _flat(to_json(config)), _flat(to_json(other))
    return {name: value for name, value in mine.items() if name not in theirs or theirs[name] != value}


def _flat(values: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _decode(kind: object, value: object, path: str) -> object:
    """A value of this type from a JSON value; the types are those that config fields have, and no others."""
    origin, choices = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in choices:
            return None
        real = [choice for choice in choices if choice is not type(None)]
        return _decode(real[0] if len(real) == 1 else _tagged(real, value, path), value, path)
    if origin is Literal:
        if value not in choices:
            raise ConfigError(f"{path} is {value!r}; expected one of {', '.join(map(str, choices))}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{path} is {value!r}; expected a list")
        return tuple(_decode(choices[0], inner, f"{path}[{i}]") for i, inner in enumerate(value))
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, value, path)
    assert isinstance(kind, type)
    accepted = (int, float) if kind is float else (kind,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"{path} is {value!r}; expected a {kind.__name__}")
    return float(value) if kind is float else value


def _decode_dataclass(kind: type, value: object, path: str) -> object:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path} is {value!r}; expected an object with the fields of {kind.__name__}")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    hints = typing.get_type_hints(kind)
    unknown = [name for name in value if name not in fields and name not in ("kind", "method")]
    if unknown:
        raise ConfigError(f"{path}.{unknown[0]} is no field of {kind.__name__}; remove it")
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in value:
            raise ConfigError(f"{path}.{name} is missing; add it")
    return kind(**{name: _decode(hints[name], value[name], f"{path}.{name}") for name in fields if name in value})


def _tagged(choices: list[type], value: object, path: str) -> type:
    """Which config an object is, by the tag it carries."""
    tags = {str(getattr(choice, "kind", getattr(choice, "method", ""))): choice for choice in choices}
    tag = value.get("kind", value.get("method")) if isinstance(value, Mapping) else None
    if not isinstance(tag, str) or tag not in tags:
        raise ConfigError(f"{path} names {tag!r}; expected a kind or method of {', '.join(tags)}")
    return tags[tag]
