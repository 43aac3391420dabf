"""`autorecall sweep`: a grid of runs, presets × seeds × values, several at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Annotated, TypeAlias

import tyro

from ..checks import brief
from ..errors import ConfigError, StoppedError
from ..own import Own
from ..presets import PRESETS, preset
from ..runs.names import run_folder
from . import run as run_command
from .many import check_jobs, finished, make, say_diverged
from .matrix import is_own
from .output import quiet_console
from .row_formats import print_rows
from .rows import Row, Run, grouped
from .text import printable
from .words import chosen_from
from .worker import Job

MOST_RUNS = 10_000
Settings: TypeAlias = Sequence[tuple[str, str]]  # options and values of a --set
OWN = ("--seeds", "--jobs", "--ray", "--best", "--no-best", "-h", "--help")


@dataclass(frozen=True)
class Arguments:
    """Make a grid of runs: every PRESET with every seed and every combination of values, then print their table.

    PRESETS are rows of `autorecall list`; 'mnist/*' names all that match. Any option of `autorecall run` can be given
    and holds for all runs. Runs that have finished are not made again, and an interrupted sweep goes on where it was
    when the same command is given again.

    autorecall sweep mnist/naive mnist/arm --seeds 5 --jobs 2
    autorecall sweep mnist/arm --set learner.diversity=1,4,16 learner.uncertainty=0.1,1 --split val --best
    """

    presets: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="PRESET…")]
    """The rows to run."""

    seeds: int = 1
    """How many seeds: 5 means 0 to 4."""

    set: tuple[str, ...] = ()
    """Values to try, as option=value,value…; several of these make a grid. A value of several words is written with
    spaces: --set 'network.hidden=400 400,100'."""

    jobs: int = 1
    """Runs to make at the same time; they share the cores."""

    ray: str | None = None
    """Make them on the Ray cluster at this address instead, or on this machine's own with "local"."""

    best: bool = False
    """Name the settings with the highest accuracy; only with --split val, so that nothing is chosen on test images."""


def main(arguments: list[str]) -> None:
    """Parse, make, print."""
    own, passed_on = _split(arguments)
    chosen = chosen_from(Arguments, "autorecall sweep", own, arguments)
    check_jobs(chosen.jobs, chosen.ray)
    grid = list(_jobs(chosen, passed_on))
    jobs, values = [job for job, _ in grid], {Path(job.folder): settings for job, settings in grid}
    if chosen.best and any(job.config.split != "val" for job in jobs):
        raise ConfigError("--best would choose on test images; add --split val")
    console = quiet_console()
    lost = make(jobs, chosen.jobs, chosen.ray, console)
    runs = []
    for job in jobs:
        result = finished(job)
        if result is not None:
            runs.append(Run(Path(job.folder), job.config, result))
    rows = grouped(runs)
    if rows:
        print_rows(rows)
    # What diverged with one seed is no good choice, however well the others did.
    unsafe = {Path(job.folder).parent for job in lost}
    safe = [row for row in rows if unsafe.isdisjoint(run.folder.parent for run in row.runs)]
    if chosen.best and safe:
        console.print(printable(_best(safe, values)), soft_wrap=True)
    if lost:
        raise StoppedError(say_diverged(lost, len(jobs)))


def _best(rows: Sequence[Row], values: Mapping[Path, Settings]) -> str:
    """The first of the rows with the highest accuracy, by what --set gave its runs."""
    highest = max(row.accuracy.value for row in rows)
    best, *others = [row for row in rows if math.isclose(row.accuracy.value, highest)]
    given = " ".join(f"{name}={value}" for name, value in values[best.runs[0].folder] if name != "seed")
    more = f", and {len(others)} other{'s' * (len(others) > 1)} as good" if others else ""
    return f"best: {best.preset}{' with ' * bool(given)}{given}, {highest:.1f} % on the validation images{more}"


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of the sweep itself, and those for every run; what several --set give is put together."""
    own: list[str] = []
    values: list[str] = []
    passed_on: list[str] = []
    target = own  # presets come first
    for word in arguments:
        if word.startswith("-") and not _is_number(word):
            name, equals, value = word.partition("=")
            target = values if name == "--set" else own if name in OWN else passed_on
            if name == "--set":
                values += [value] if equals else []
                continue
        target.append(word)
    return own + (["--set", *values] if values else []), passed_on


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _jobs(chosen: Arguments, passed_on: Sequence[str]) -> Iterator[tuple[Job, Settings]]:
    """The runs, and what --set gives each."""
    if not 1 <= chosen.seeds <= MOST_RUNS:
        raise ConfigError(f"seeds is {chosen.seeds}; expected 1 to {MOST_RUNS:,}, where 5 means 0 to 4")
    for word in ("--config", "--fresh", "--tensorboard", "--pictures"):
        if any(given.split("=")[0] == word for given in passed_on):
            raise ConfigError(f"{word} is for a single run; give it to `autorecall run`")
    grid = [_values(text) for text in chosen.set]
    named = [name for name, _ in grid]
    if len(set(named)) < len(named):
        twice = next(name for name in named if named.count(name) > 1)
        raise ConfigError(f"--set has {brief(twice)} twice; give all its values at once, as in {twice}=1,2")
    seeded = any(name == "seed" for name, _ in grid) or any(word.split("=")[0] == "--seed" for word in passed_on)
    if seeded and chosen.seeds > 1:
        raise ConfigError("both --seeds and seed are given; expected one of them")
    names, settings_in_all = list(_named(chosen.presets)), math.prod(len(values) for _, values in grid)
    if len(names) * settings_in_all * chosen.seeds > MOST_RUNS:
        raise ConfigError(
            f"{len(names)} presets, {settings_in_all} settings and {chosen.seeds} seeds are more than {MOST_RUNS:,} "
            "runs; choose fewer"
        )
    combinations = list(product(*([(name, value) for value in values] for name, values in grid)))
    for name in names:
        _refuse_unknown(name, passed_on, combinations[0], alone=len(names) == 1)
    given: dict[str, tuple[Job, Settings]] = {}
    for name, settings in product(names, combinations):
        words = _words(settings)
        parsed = run_command.parse([name, *passed_on, *words])
        for number in range(chosen.seeds):
            config = parsed.run if seeded else replace(parsed.run, seed=number)
            folder = str(run_folder(parsed.out, name, config))
            place = None if parsed.data is None else str(parsed.data)
            own = Own(parsed.network, parsed.learner, str(Path.cwd()))
            keep_learner = parsed.keep_learner or (None if is_own(config.dataset) else False)
            job = Job(name, config, folder, place, keep_learner, own=own)
            if given.setdefault(folder, (job, settings))[0] is not job:
                raise ConfigError(f"two of these runs would go to {folder}; leave one of them out")
    yield from given.values()


def _words(settings: Settings) -> list[str]:
    return [word for option, value in settings for word in (f"--{option}", *value.split())]


def _refuse_unknown(preset: str, passed_on: Sequence[str], settings: Settings, alone: bool) -> None:
    """Refuse an option that the runs of a preset do not have; which ones there are depends on its method."""
    unknown = run_command.unknown_options([preset, *passed_on, *_words(settings)], preset)
    if not unknown:
        return
    where = "which --set names" if unknown[0] in _words(settings) else "which is given for all runs"
    leave = "" if alone else "leave the preset out, or "
    raise ConfigError(f"{preset} has no option {unknown[0]:.80}, {where}; {leave}see `autorecall run {preset} --help`")


def _named(patterns: Sequence[str]) -> Iterator[str]:
    if not patterns:
        raise ConfigError("no preset is given; expected some of `autorecall list`, such as mnist/arm or 'mnist/*'")
    found: dict[str, None] = {}
    for pattern in patterns:
        names = [name for name in PRESETS if fnmatchcase(name, pattern)]
        if not names:
            preset(pattern)  # says that there is none
        found |= dict.fromkeys(names)
    yield from found


def _values(text: str) -> tuple[str, list[str]]:
    """The name and the values of `name=value,value`."""
    name, equals, rest = text.partition("=")
    values = [value.strip() for value in rest.split(",")]
    name = name.strip().removeprefix("--")
    if not equals or not name or not all(values):
        raise ConfigError(f"--set has {brief(text)}; expected option=value,value such as learner.diversity=1,4,16")
    if len(set(values)) < len(values):
        raise ConfigError(f"--set has {brief(text)} with a value twice; leave one out")
    return name, values
