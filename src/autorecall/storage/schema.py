"""Typed values to JSON and back, for configs and results: dataclasses of plain values, and nothing else."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Literal, TypeVar

from ..checks import brief, is_finite, type_hints
from ..errors import AutorecallError, ConfigError, reason
from .extensible import Extensible, NotImported, is_foreign, name_of

Kind = TypeVar("Kind")
TOO_LARGE = 2**63  # for a whole number, in either direction
DEEPEST = 20  # objects and lists within each other, in settings of a class that is not there


def to_json(config: object) -> dict[str, object]:
    """A config as plain JSON values; where several kinds are possible, `kind` or `method` says which one it is."""
    assert dataclasses.is_dataclass(config)
    assert not isinstance(config, type)
    if isinstance(config, NotImported):
        return {**config.values}
    if isinstance(config, Extensible):
        values: dict[str, object] = {config.tag: name_of(type(config))}
    else:
        values = {tag: getattr(config, tag) for tag in ("kind", "method") if hasattr(config, tag)}
    for field in dataclasses.fields(config):
        values[field.name] = plain(getattr(config, field.name))
    return values


def plain(value: object) -> object:
    """A value as JSON holds it."""
    if isinstance(value, tuple | list):
        return [plain(inner) for inner in value]
    return to_json(value) if dataclasses.is_dataclass(value) else value


def decode(kind: object, value: object, path: str) -> object:
    """A value of this type from a JSON value; only the types that our fields have are supported."""
    origin, choices = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in choices:
            return None
        real = [choice for choice in choices if choice is not type(None)]
        return decode(real[0] if len(real) == 1 else _tagged(real, value, path), value, path)
    if origin is Literal:
        if value not in choices:
            raise ConfigError(f"{path} is {brief(value)}; expected one of {', '.join(map(str, choices))}")
        return value
    if origin in (tuple, list):
        if not isinstance(value, list):
            raise ConfigError(f"{path} is {brief(value)}; expected a list")
        return origin(decode(choices[0], inner, f"{path}[{i}]") for i, inner in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{path} is {brief(value)}; expected an object")
        return {name: decode(choices[1], inner, f"{path}.{_name(name)}") for name, inner in value.items()}
    if isinstance(kind, type) and inspect.isabstract(kind):
        if issubclass(kind, Extensible) and _is_elsewhere(kind, value):
            assert isinstance(value, Mapping)
            _refuse_deep(value, path)
            return NotImported(path.rpartition(".")[2], value)
        kind = _tagged(concrete(kind), value, path)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, value, path)
    assert isinstance(kind, type)
    if kind is float and type(value) is int and abs(value) < 2**53:
        return float(value)
    if type(value) is not kind:  # exactly: JSON's true is not a number
        raise ConfigError(f"{path} is {brief(value)}; expected a {kind.__name__}")
    if kind is float and not is_finite(value):
        raise ConfigError(f"{path} is {value}; expected a finite number")
    if type(value) is int and abs(value) >= TOO_LARGE:
        raise ConfigError(f"{path} is {brief(value)}; expected a whole number of less than 2**63")
    return value


def _decode_dataclass(kind: type, value: object, path: str) -> object:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path} is {brief(value)}; expected an object with the fields of {kind.__name__}")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    hints = type_hints(kind)
    unknown = [name for name in value if name not in fields and name not in ("kind", "method")]
    if unknown:
        raise ConfigError(f"{path}.{_name(unknown[0])} is not a field of {kind.__name__}; remove it")
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in value:
            raise ConfigError(f"{path}.{name} is missing; add it")
    given = {name: decode(hints[name], value[name], f"{path}.{name}") for name in fields if name in value}
    try:
        return kind(**given)
    except Exception as error:
        if isinstance(error, AutorecallError) or not is_foreign(kind):
            raise
        raise ConfigError(f"{path} is refused by {name_of(kind)}: {reason(error)}; correct its settings") from error


def _name(name: str) -> str:
    """The name of a field that a file gives, as a sentence names it."""
    return repr(name)[1:-1][:80]


def _tagged(choices: list[type], value: object, path: str) -> type:
    """The config class of an object, by its tag."""
    # Before they were named by where they are defined, users' classes had a `method` of their own.
    early = {choice.method: choice for choice in choices if is_foreign(choice) and hasattr(choice, "method")}
    tags = early | {name_of(choice): choice for choice in choices}
    tag = _tag_in(value)
    if not isinstance(tag, str) or tag not in tags:
        ours = sorted(name_of(choice) for choice in choices if not is_foreign(choice))
        raise ConfigError(f"{path} names {brief(tag)}; expected a kind or method of {', '.join(ours)}")
    return tags[tag]


def _tag_in(value: object) -> object:
    return value.get("kind", value.get("method")) if isinstance(value, Mapping) else None


def _is_elsewhere(kind: type, value: object) -> bool:
    """Whether settings are of a user's class that the program does not have."""
    tag = _tag_in(value)
    return isinstance(tag, str) and ":" in tag and tag not in map(name_of, concrete(kind))


def _refuse_deep(value: object, path: str, depth: int = 0) -> None:
    """Whoever shows or compares these settings goes down into them."""
    if depth > DEEPEST:
        raise ConfigError(f"{path} has settings more than {DEEPEST} levels deep; expected plain values")
    if isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            _refuse_deep(inner, path, depth + 1)


def concrete(kind: type[Kind]) -> list[type[Kind]]:
    """Every concrete subclass of an abstract class."""
    children: list[type[Kind]] = kind.__subclasses__()
    found = [inner for child in children for inner in (child, *concrete(child))]
    return [inner for inner in found if not inspect.isabstract(inner)]


def differences(config: object, other: object) -> dict[str, object]:
    """The fields of `config` that differ from `other`, under their command-line names."""
    return json_differences(to_json(config), to_json(other))


def json_differences(values: Mapping[str, object], other: Mapping[str, object]) -> dict[str, object]:
    """The same for two configs as `to_json` gives them."""
    mine, theirs = _flat(values), _flat(other)
    return {name: value for name, value in mine.items() if name not in theirs or theirs[name] != value}


def field_of(config: object, name: str) -> object:
    """The value of the field of this command-line name."""
    for part in name.split("."):
        config = getattr(config, part)
    return config


def with_field(config: Kind, name: str, value: object) -> Kind:
    """The config with the field of this command-line name changed, such as learner.lag.every."""
    first, _, rest = name.partition(".")
    changed = with_field(getattr(config, first), rest, value) if rest else value
    return dataclasses.replace(config, **{first: changed})  # type: ignore[type-var]


def names_of_fields(config: object) -> list[str]:
    """The command-line names of all fields, at any depth."""
    return list(values_of_fields(config))


def values_of_fields(config: object) -> dict[str, object]:
    """All fields, at any depth, by their command-line names, with the values that a file has."""
    return _flat(to_json(config))


def texts(config: object) -> Iterator[str]:
    """Every text among the settings, at any depth."""
    if isinstance(config, str):
        yield config
    elif isinstance(config, Mapping | list):
        for inner in config.values() if isinstance(config, Mapping) else config:
            yield from texts(inner)


def _flat(values: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
