"""Finished runs, gathered into rows: one per preset and settings, over its seeds, next to the paper's figures."""

from __future__ import annotations

import os
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..config import RunConfig
from ..errors import AutorecallError, DataError
from ..presets import PRESETS, changes
from ..runs.folder import FILES, is_ours, read_config
from ..runs.result import Result, read_result
from .matrix import MOST_COLUMNS, is_own, task_label
from .text import markdown as in_markdown
from .text import printable

HEADER = ("run", "seeds", "accuracy", "paper", "forgetting", "paper", "images", "MB", "parameters", "MB", "seconds")
NAMED = 5  # of a list that may be long

# What the last digits of a figure depend on, or more: (where it is recorded, under which name, what it is called)
COMPUTED_WITH = (
    ("machine", "kernels", "kernels"),
    ("machine", "instructions", "instructions"),
    ("machine", "threads", "number of threads"),
    ("machine", "device", "device"),
    ("versions", "torch", "version of torch"),
)


@dataclass(frozen=True)
class Run:
    """One finished run."""

    folder: Path
    config: RunConfig
    result: Result


def print_rows(runs: Sequence[Run], markdown: bool = False) -> None:
    """One table of all of them, and what its figures mean."""
    groups = grouped(runs)
    shown = in_markdown if markdown else printable
    rows = [tuple(map(shown, _row(name, group))) for name, group in groups.items()]
    notes = _notes(groups) + [note for name, group in groups.items() for note in _mixed(name, group, shown)]
    notes += [note for name, group in groups.items() for note in _tasks(name, group[0], shown)]
    if markdown:
        print("| " + " | ".join(HEADER) + " |\n|" + "---|" * len(HEADER))
        print("\n".join("| " + " | ".join(row) + " |" for row in rows))
        print("\n" + "\n".join(notes))
        return
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 160
    table = Table(*HEADER)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for note in notes:
        console.print(note)


def gather(directory: Path) -> list[Run]:
    """All finished runs under a folder; what cannot be read is named and left out."""
    if not directory.is_dir():
        raise DataError(f"{directory} is not a folder; give one that `autorecall run --out` wrote")
    runs, unended = [], []
    for folder in sorted(_folders(directory)):
        if ".old-" in folder.name:
            continue
        if not (folder / "result.json").exists():
            if any(is_ours(folder / name) for name in FILES):
                unended.append(f"{folder} ({'diverged' if (folder / 'stopped.json').exists() else 'unfinished'})")
            continue
        try:
            runs.append(read_run(folder))
        except AutorecallError as error:
            _leave_out(str(error))
    if unended:
        _leave_out(_some(unended))
    return runs


def _folders(directory: Path) -> Iterator[Path]:
    """The folders that hold a file of a run, at any depth; links to folders are not followed."""
    left = [directory]
    while left:
        folder = left.pop()
        try:
            with os.scandir(folder) as entries:
                found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        except OSError as error:
            _leave_out(f"cannot read {folder}: {error.strerror}")
            continue
        left += [folder / name for name, is_folder in found if is_folder]
        if any(name in FILES for name, _ in found):
            yield folder


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _leave_out(what: str) -> None:
    print(printable(f"left out: {what}"), file=sys.stderr)


def read_run(folder: Path) -> Run:
    """One finished run."""
    try:
        _, config = read_config(folder / "config.json")
        return Run(folder, config, read_result(folder / "result.json"))
    except AutorecallError as error:
        raise DataError(f"{folder}: {error}") from error


def grouped(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs that differ only in the seed, under a name that says how they differ from their preset."""
    groups: dict[str, dict[int, Run]] = {}
    usual = {name: row.config for name, row in PRESETS.items()}
    for run in runs:
        # Without a preset, a run is compared with the first of its name.
        changed = changes(run.config, usual.setdefault(run.result.preset, run.config))
        name = " ".join([run.result.preset, *(f"{field}={value}" for field, value in changed.items())])
        twin = groups.setdefault(name, {}).setdefault(run.result.seed, run)
        if twin is not run:  # a duplicate says nothing about how much runs differ
            _leave_out(f"{run.folder} has the same settings and seed as {twin.folder}")
    order = {name: place for place, name in enumerate(PRESETS)}
    names = sorted(groups, key=lambda name: (order.get(name.split(" ")[0], len(order)), name))
    return {name: list(groups[name].values()) for name in names}


def _row(name: str, runs: Sequence[Run]) -> tuple[str, ...]:
    forgetting = [run.result.forgetting for run in runs if run.result.forgetting is not None]
    memory = runs[0].result.memory
    return (
        _short(name),
        str(len(runs)),
        spread([run.result.accuracy for run in runs]),
        _paper(name, "accuracy"),
        spread(forgetting),
        _paper(name, "forgetting"),
        f"{memory.images:,.0f}",
        f"{memory.image_mb:.2f}",
        f"{memory.numbers:,.0f}",
        f"{memory.number_mb:.2f}",
        f"{statistics.fmean(run.result.seconds.train + run.result.seconds.evaluate for run in runs):.1f}",
    )


def _short(name: str) -> str:
    """The name of a row, without the rest of long lists."""
    return re.sub(r"\[([^][,]+, [^][,]+), [^][]+\]", r"[\1, …]", name)


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation, as far as there are any."""
    if not values:
        return "-"
    mean = statistics.fmean(values)
    return f"{mean:.1f} ± {statistics.stdev(values):.1f}" if len(values) > 1 else f"{mean:.1f}"


def _paper(name: str, what: str) -> str:
    """The published figure of a row, unless it has other settings or was never published."""
    if name not in PRESETS:
        return "-"
    published = PRESETS[name].published
    if published is None:
        return "not in the paper"
    value = getattr(published, what)
    return "-" if value is None else f"{value} ± {getattr(published, what + '_spread')}"


def _notes(names: Iterable[str]) -> list[str]:
    """What ± means, in our figures and in the paper's."""
    meanings: dict[str, list[str]] = {}
    for name in names:
        published = PRESETS[name].published if name in PRESETS else None
        if published is not None:
            meanings.setdefault(published.spread, []).append(name)
    notes = ["Measured: mean ± standard deviation over seeds, in percent; a single run has no ±. 1 MB is 10⁶ bytes."]
    return notes + [f"Paper's ±: {meaning} ({', '.join(names)})." for meaning, names in meanings.items()]


def _tasks(name: str, run: Run, shown: Callable[[str], str]) -> list[str]:
    """The tasks of a user's own data, by the names of their classes."""
    if not is_own(run.config.dataset) or not run.result.tasks:
        return []
    tasks = [task_label(classes, 60) for classes in run.result.tasks]
    more = f"; and {len(tasks) - MOST_COLUMNS:,} more" if len(tasks) > MOST_COLUMNS else ""
    return [f"{shown(_short(name))}: tasks {shown('; '.join(tasks[:MOST_COLUMNS]))}{more}."]


def _mixed(name: str, runs: Sequence[Run], shown: Callable[[str], str]) -> list[str]:
    """In what the runs of a row differ although their settings do not."""
    notes = []
    for part, key, called in COMPUTED_WITH:
        seeds: dict[str, list[int]] = {}
        for run in runs:
            seeds.setdefault(getattr(run.result, part).get(key, "not recorded"), []).append(run.result.seed)
        if len(seeds) > 1:
            values = "; ".join(
                f"{shown(value)}: seed{'s' * (len(having) > 1)} {_some([str(seed) for seed in sorted(having)])}"
                for value, having in sorted(seeds.items())
            )
            row = f"{shown(_short(name))}: not all on the same {called} ({values})"
            notes.append(f"{row}; the same seed gives other figures there.")
    return notes
