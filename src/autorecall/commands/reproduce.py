"""`autorecall reproduce`: a table or figure of the paper, from the runs that it needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from ..checks import brief
from ..errors import ConfigError, DataError
from ..runs.folder import check_writable, nearest_folder
from ..torch_state import cores
from . import costs
from .many import check_jobs, diverged, finished, make, say_diverged
from .output import quiet_console
from .paper import STUDIES
from .paper.study import Place, Row
from .rows import some
from .text import printable
from .words import chosen_from

MOST_SEEDS = 1000


@dataclass(frozen=True)
class Arguments:
    """Make the runs that a table or figure of the paper needs, as far as they are missing, and write it.

    Runs go to OUT like those of `autorecall run`; tables (Markdown, LaTeX, CSV) and figures (PNG, PDF) to OUT/paper.
    An interrupted reproduction goes on where it was when the same command is given again.

    autorecall reproduce --list
    autorecall reproduce mnist --jobs 2
    autorecall reproduce ablation --fraction 0.1 --seeds 3
    """

    names: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="NAME…")] = ()
    """What to reproduce: names of --list, or all."""

    list: bool = False
    """Print the names, with an estimate of the time on this machine."""

    seeds: int = 5
    """How many seeds: 5, as in the paper, means 0 to 4."""

    fraction: float = 1.0
    """Keep only this first part of every task; figures are then not comparable with the paper's."""

    jobs: int = 1
    """Runs to make at the same time; they share the cores."""

    ray: str | None = None
    """Make them on the Ray cluster at this address instead, or on this machine's own with "local"."""

    out: Path = Path("results")
    """Where runs, tables and figures go."""

    data: Path | None = None
    """Folder of the data; if unset, AUTORECALL_DATA, a cache or a download."""

    make_runs: bool = True
    """--no-make-runs writes tables and figures from the runs that there are."""


def main(arguments: list[str]) -> None:
    """Parse, make, write."""
    chosen = chosen_from(Arguments, "autorecall reproduce", arguments)
    if not 1 <= chosen.seeds <= MOST_SEEDS:
        raise ConfigError(f"seeds is {chosen.seeds}; expected 1 to {MOST_SEEDS:,}, where 5 means 0 to 4")
    if not (math.isfinite(chosen.fraction) and 0 < chosen.fraction <= 1):
        raise ConfigError(f"fraction is {chosen.fraction}; expected a number above 0 and at most 1")
    check_jobs(chosen.jobs, chosen.ray)
    for name in chosen.names:
        if name not in STUDIES and name != "all":
            raise ConfigError(f"there is no study {brief(name)}; expected all, or some of {', '.join(STUDIES)}")
    names = list(STUDIES) if "all" in chosen.names else list(chosen.names)
    if not names and not chosen.list:
        raise ConfigError(f"nothing is named; expected all, or some of {', '.join(STUDIES)}; --list says what they are")
    console = quiet_console()
    place = Place(chosen.out, chosen.data)
    if chosen.list:
        nearest_folder(chosen.out, "the folder of all runs")
        _list(console, place, names or list(STUDIES), chosen)
        return
    check_writable(place.paper, "the folder of tables and figures")
    rows = [row for name in names for row in STUDIES[name].wanted(place, chosen.seeds, chosen.fraction)]
    jobs = place.jobs(rows)
    lost = make(jobs, chosen.jobs, chosen.ray, console) if chosen.make_runs else [job for job in jobs if diverged(job)]
    if lost:
        console.print(f"{printable(say_diverged(lost, len(jobs)))}; tables leave them out", soft_wrap=True)
    lacking = []
    for name in names:
        written = STUDIES[name].write(place, chosen.seeds, chosen.fraction)
        lacking += [] if written else [name]
        for path in written:
            console.print(f"wrote {printable(str(path))}", soft_wrap=True)
        gaps = _missing(place, STUDIES[name].wanted(place, chosen.seeds, chosen.fraction)) if written else ""
        if gaps:
            console.print(f"{name}: {gaps}; it is made from those that there are", soft_wrap=True)
    if lacking:
        raise DataError(
            f"{chosen.out} has too few runs for {', '.join(lacking)}; leave --no-make-runs out, or see --fraction"
        )


def _missing(place: Place, rows: Sequence[Row]) -> str:
    """How many of the runs of these rows there are not, and which rows lack them; nothing if none is missing."""
    jobs = place.jobs(rows)
    missing = {job.folder for job in jobs if finished(job) is None and diverged(job) is None}
    if not missing:
        return ""
    lacking = [row.label for row in rows if any(job.folder in missing for job in place.jobs([row]))]
    said = f"{len(missing)} of {len(jobs)} runs {'are' if len(missing) > 1 else 'is'} missing"
    return f"{said} ({printable(some(list(dict.fromkeys(lacking))))})"


def _list(console: Console, place: Place, names: list[str], chosen: Arguments) -> None:
    """What there is, how many of its runs are missing, and how long they would take here."""
    slowness = costs.slowness()
    table = Table("name", "what", "runs", "missing", "time left")
    for name in names:
        jobs = place.jobs(STUDIES[name].wanted(place, chosen.seeds, chosen.fraction))
        missing = [job for job in jobs if finished(job) is None and diverged(job) is None]
        datasets = {job.config.dataset for job in missing}
        here = {dataset: costs.share_here(dataset, chosen.data) for dataset in datasets}
        seconds = slowness * sum(here[job.config.dataset] * costs.seconds(job.preset, job.config) for job in missing)
        # Two networks keep two cores busy, and two runs at once do as well.
        left = costs.duration(seconds / min(cores(), 2 * chosen.jobs)) if missing else "-"
        table.add_row(name, STUDIES[name].what, str(len(jobs)), str(len(missing)), left)
    console.print(table)
    many = f"{chosen.seeds} seeds" if chosen.seeds > 1 else "one seed"
    part = "whole streams" if chosen.fraction == 1 else f"{100 * chosen.fraction:g} % of every task"
    console.print(f"{many}, {part}, {chosen.jobs} at a time, on {cores()} cores; what is shared is made once")
