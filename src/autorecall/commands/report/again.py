"""The command that makes a run again."""

from __future__ import annotations

import shlex

from ...config import ARRAYS
from ...data import OWN
from ...presets import PRESETS
from ...storage.schema import differences
from ..rows import Run

KINDS = ("kind", "method")  # of a learner or network, which no option changes


def command_for(run: Run) -> str | None:
    """What to type; None for a run that was made in Python."""
    config, result = run.config, run.result
    if result.parent:
        return shlex.join(["autorecall", "learn", result.parent, "--data", "DATA"])
    if config.dataset == ARRAYS:
        return None
    usual = PRESETS.get(result.preset)
    changed = {} if usual is None else differences(config, usual.config)
    if usual is None or any(name.split(".")[-1] in KINDS for name in changed):
        return shlex.join(["autorecall", "run", "--config", str(run.folder / "config.json")])
    used = result.machine.get("threads", "")
    if used.isdecimal():
        changed["threads"] = used  # the same number gives the same digits
    words = ["autorecall", "run", result.preset]
    for name, value in changed.items():
        words += _option(name, value)
    return shlex.join([*words, *(["--data", "DATA"] if config.dataset in OWN else [])])


def _option(name: str, value: object) -> list[str]:
    *parents, last = name.replace("_", "-").split(".")
    if isinstance(value, bool):
        return ["--" + ".".join([*parents, last if value else f"no-{last}"])]
    values = value if isinstance(value, list) else [value]
    return ["--" + ".".join([*parents, last]), *map(str, values)]
