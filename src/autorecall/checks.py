"""Checks shared by configs. Settings are named as on the command line, such as learner.repeats=0."""

from __future__ import annotations

import math
from typing import Literal, get_args, get_type_hints

from .errors import ConfigError

LARGEST = 10**6  # for any count: anything larger is a typo


def check_choices(config: object, part: str) -> None:
    """Refuse a value that its field does not allow."""
    for name, kind in get_type_hints(type(config)).items():
        choices = get_args(kind)
        value = getattr(config, name)
        if getattr(kind, "__origin__", None) is Literal and value not in choices:
            raise ConfigError(
                f"{part}{'.' if part else ''}{name} is {value!r:.80}; expected one of {', '.join(choices)}"
            )


def check_counts(config: object, part: str, *names: str) -> None:
    """Refuse counts outside 1 to LARGEST."""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int) or not 1 <= value <= LARGEST:
            raise ConfigError(f"{part}.{name} is {getattr(config, name)}; expected 1 to {LARGEST:,}")


def check_positive(config: object, part: str, *names: str) -> None:
    """Refuse settings that are not finite and positive."""
    for name in names:
        value = getattr(config, name)
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{part}.{name} is {value}; expected a number above 0")


def check_not_negative(config: object, part: str, *names: str) -> None:
    """Refuse settings that are negative or not finite."""
    for name in names:
        value = getattr(config, name)
        if not (math.isfinite(value) and value >= 0):
            raise ConfigError(f"{part}.{name} is {value}; expected a number of at least 0")
