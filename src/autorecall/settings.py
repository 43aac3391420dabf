"""Checks that configs share. A setting is named as on the command line, such as learner.steps=0."""

from __future__ import annotations

import math
from typing import Literal, get_args, get_type_hints

from .errors import ConfigError

LARGEST = 10**6  # of any count: beyond it lies a slip of the finger


def check_choices(config: object, part: str) -> None:
    """Refuse a word that is none of those its field allows."""
    for name, kind in get_type_hints(type(config)).items():
        choices = get_args(kind)
        value = getattr(config, name)
        if isinstance(value, str) and getattr(kind, "__origin__", None) is Literal and value not in choices:
            raise ConfigError(f"{part}.{name} is {value!r}; expected one of {', '.join(choices)}")


def check_counts(config: object, part: str, *names: str) -> None:
    """Refuse counts that are not from 1 to LARGEST."""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int) or not 1 <= value <= LARGEST:
            raise ConfigError(f"{part}.{name} is {getattr(config, name)}; expected 1 to {LARGEST:,}")


def check_positive(config: object, part: str, *names: str) -> None:
    """Refuse settings that are not finite numbers above 0."""
    for name in names:
        value = getattr(config, name)
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{part}.{name} is {value}; expected a number above 0")


def check_not_negative(config: object, part: str, *names: str) -> None:
    """Refuse settings that are not finite numbers of at least 0."""
    for name in names:
        value = getattr(config, name)
        if not (math.isfinite(value) and value >= 0):
            raise ConfigError(f"{part}.{name} is {value}; expected a number of at least 0")
