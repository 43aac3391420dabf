"""Checks that the configs of the learners share."""

from __future__ import annotations

import math

from ..errors import ConfigError


def positive(**values: float) -> None:
    """Refuse settings that are not finite numbers above 0."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"learner.{name} is {value}; expected a number above 0")


def not_negative(**values: float) -> None:
    """Refuse settings that are not finite numbers of at least 0."""
    for name, value in values.items():
        if not (math.isfinite(value) and value >= 0):
            raise ConfigError(f"learner.{name} is {value}; expected a number of at least 0")
