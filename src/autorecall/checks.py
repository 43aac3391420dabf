"""Checks shared by configs. Settings are named as on the command line, such as learner.repeats=0."""

from __future__ import annotations

import math
from functools import cache
from typing import Literal, get_args, get_origin, get_type_hints

from .errors import ConfigError

LARGEST = 10**6  # for any count: anything larger is a typo
LARGEST_SEED = 2**63 - 1


def brief(value: object) -> str:
    """A value as a sentence names it: text in quotes, without escape codes, and no more than the beginning of it."""
    try:
        return (repr(value) if isinstance(value, str) else str(value))[:80]
    except (ValueError, RecursionError):  # of more than 4,300 digits, or nested too deeply
        return f"a {type(value).__name__} too large to print"


def is_finite(value: object) -> bool:
    """Whether this is a number, and neither infinite nor NaN as a float."""
    try:
        return math.isfinite(value)  # type: ignore[arg-type]
    except (TypeError, OverflowError):
        return False


@cache
def type_hints(kind: type) -> dict[str, object]:
    """The types of a class's fields; finding them takes longer than checking a value against them."""
    return get_type_hints(kind)


@cache
def _choices(kind: type) -> dict[str, tuple[str, ...]]:
    """The values that a class's fields allow, for those that list them."""
    return {name: get_args(hint) for name, hint in type_hints(kind).items() if get_origin(hint) is Literal}


def check_choices(config: object, part: str) -> None:
    """Refuse a value that its field does not allow."""
    kind: type = type(config)
    for name, choices in _choices(kind).items():
        value = getattr(config, name)
        if value not in choices:
            raise ConfigError(
                f"{part}{'.' if part else ''}{name} is {brief(value)}; expected one of {', '.join(choices)}"
            )


def check_counts(config: object, part: str, *names: str) -> None:
    """Refuse counts outside 1 to LARGEST."""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int) or not 1 <= value <= LARGEST:
            raise ConfigError(f"{part}.{name} is {brief(value)}; expected 1 to {LARGEST:,}")


def check_positive(config: object, part: str, *names: str) -> None:
    """Refuse settings that are not finite and positive."""
    for name in names:
        value = getattr(config, name)
        if not (is_finite(value) and value > 0):
            raise ConfigError(f"{part}.{name} is {brief(value)}; expected a number above 0")


def check_not_negative(config: object, part: str, *names: str) -> None:
    """Refuse settings that are negative or not finite."""
    for name in names:
        value = getattr(config, name)
        if not (is_finite(value) and value >= 0):
            raise ConfigError(f"{part}.{name} is {brief(value)}; expected a number of at least 0")
