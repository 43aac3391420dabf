"""Versions of autorecall's files, and how older ones are read.

config.json, result.json, stopped.json, checkpoints and saved learners carry a number, `format`. To rename a setting,
raise FORMAT and add a step here: older files are upgraded as they are read.

1 (no number): settings included how a step is executed; `images`, `steps` and `divergence` meant several things.
2: a checkpoint held the whole history.
3: the current one.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import DataError

FORMAT = 3

_HOW = ("copies", "engine", "side_by_side")  # in format 1: how a step was executed, not a setting
_RECALL = {"images": "recalled_images", "steps": "ascent_steps"}
_REPLAY = {"images": "kept_images", "steps": "steps_per_batch"}
_GENERATOR = {"steps": "steps_per_batch", "divergence_weight": "kl_weight"}
_RENAMED_IN_2: dict[object, dict[str, str]] = {
    "adi": _RECALL,
    "arm": _RECALL | {"divergence": "divergence_form", "divergence_weight": "divergence"},
    "er": _REPLAY,
    "er-mir": _REPLAY,
    "gem": _REPLAY,
    "icarl": _REPLAY,
    "gen": _GENERATOR,
    "gen-mir": _GENERATOR,
}


def stamped(values: Mapping[str, object]) -> dict[str, object]:
    """Values to write, with the current format number."""
    return {"format": FORMAT, **values}


def unstamped(values: Mapping[str, object]) -> tuple[int, dict[str, object]]:
    """The format number of stored values, and the values without it."""
    number = values.get("format", 1)
    if type(number) is not int or number < 1:
        raise DataError(f"its format is {number!r:.80}; expected a number from 1 to {FORMAT}")
    if number > FORMAT:
        raise DataError(f"its format is {number}, from a newer autorecall, and this one reads up to {FORMAT}; upgrade")
    return number, {name: value for name, value in values.items() if name != "format"}


def upgraded_run(config: Mapping[str, object], number: int) -> dict[str, object]:
    """A run's config in the current format."""
    return {**config, "learner": upgraded_learner(config["learner"], number)} if "learner" in config else {**config}


def upgraded_learner(config: object, number: int) -> object:
    """A learner's settings in the current format; damaged ones are left for their reader to refuse."""
    if number >= 2 or not isinstance(config, Mapping):
        return config
    renamed = _RENAMED_IN_2.get(config.get("method"), {}) if isinstance(config.get("method"), str) else {}
    return {renamed.get(name, name): value for name, value in config.items() if name not in _HOW}
