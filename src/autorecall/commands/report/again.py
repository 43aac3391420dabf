"""The command that makes a run again."""

from __future__ import annotations

import shlex

from ...config import ARRAYS, RunConfig
from ...data import OWN
from ...presets import PRESETS
from ...storage.extensible import NotImported, can_be_imported, is_foreign, name_of
from ...storage.schema import differences
from ..rows import Run

KINDS = ("kind", "method")  # of a learner or network, which no option changes


def command_for(run: Run) -> str | None:
    """What to type; None for a run that was made in Python."""
    config, result = run.config, run.result
    own = _own(config)
    if own is None or (config.dataset == ARRAYS and not result.parent):
        return None
    if result.parent:
        return shlex.join(["autorecall", "learn", result.parent, "--data", "DATA", *own])
    data = ["--data", "DATA"] if config.dataset in OWN else []
    usual = PRESETS.get(result.preset)
    changed = {} if usual is None else differences(config, usual.config)
    if usual is None or any(name.split(".")[-1] in KINDS for name in changed):
        return shlex.join(["autorecall", "run", "--config", str(run.folder / "config.json"), *own, *data])
    used = result.machine.get("threads", "")
    if used.isdecimal():
        changed["threads"] = used  # the same number gives the same digits
    words = ["autorecall", "run", result.preset]
    for name, value in changed.items():
        words += _option(name, value)
    return shlex.join([*words, *data])


def _own(config: RunConfig) -> list[str] | None:
    """The options that import a user's own network and learner; None if they are in a program, not in a module."""
    words = []
    for part, settings in (("network", config.network), ("learner", config.learner)):
        name = settings.name if isinstance(settings, NotImported) else name_of(type(settings))
        if isinstance(settings, NotImported) or is_foreign(type(settings)):
            if not can_be_imported(name):
                return None
            words += [f"--{part}", name]
    return words


def _option(name: str, value: object) -> list[str]:
    *parents, last = name.replace("_", "-").split(".")
    if isinstance(value, bool):
        return ["--" + ".".join([*parents, last if value else f"no-{last}"])]
    values = value if isinstance(value, list) else [value]
    return ["--" + ".".join([*parents, last]), *map(str, values)]
