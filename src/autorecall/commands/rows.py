"""Finished runs, gathered into rows: one per preset and settings, over its seeds, next to the paper's figures."""

from __future__ import annotations

import hashlib
import os
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from ..config import RunConfig
from ..errors import AutorecallError, DataError
from ..presets import PRESETS, Published, changes, share_of_images
from ..runs.folder import FILES, is_ours, read_config
from ..runs.names import short_names
from ..runs.result import MemoryCount, Result, read_result
from ..storage.schema import names_of_fields
from .matrix import MOST_COLUMNS, is_own, task_label
from .table import Figure
from .text import printable

PART = "images"  # how many of the paper's, if not all
MOVED_ASIDE = re.compile(r"\.old-\d+$")  # by --fresh
NAMED = 5  # of a list that may be long

# What the last digits of a figure depend on, or more: (where it is recorded, under which name, what it is called)
COMPUTED_WITH = (
    ("machine", "kernels", "kernels"),
    ("machine", "instructions", "instructions"),
    ("machine", "threads", "number of threads"),
    ("machine", "device", "device"),
    ("versions", "torch", "version of torch"),
)


Told: TypeAlias = Callable[[str], None]


def leave_out(what: str) -> None:
    """Say what is left out."""
    print(printable(f"left out: {what}"), file=sys.stderr)


@dataclass(frozen=True)
class Run:
    """One finished run."""

    folder: Path
    config: RunConfig
    result: Result


@dataclass(frozen=True)
class Row:
    """Runs that differ only in the seed: a preset, and what differs from it."""

    preset: str
    changed: Mapping[str, object]
    by_seed: dict[int, Run]

    @property
    def runs(self) -> list[Run]:
        """One for each seed."""
        return list(self.by_seed.values())

    @property
    def name(self) -> str:
        """The preset, and all that differs from it."""
        return " ".join([self.preset, *(f"{field}={value}" for field, value in self.changed.items())])

    @property
    def in_presets(self) -> bool:
        """Whether this is a preset as it stands."""
        return self.preset in PRESETS and not self.changed

    @property
    def published(self) -> Published | None:
        """What the paper reports of it, unless it has other settings or was never published."""
        return PRESETS[self.preset].published if self.in_presets else None

    @property
    def accuracy(self) -> Figure:
        """Over seeds."""
        found = Figure.over([run.result.accuracy for run in self.runs])
        assert found is not None
        return found

    @property
    def forgetting(self) -> Figure | None:
        """Over seeds; None if there is a single task."""
        return Figure.over([run.result.forgetting for run in self.runs if run.result.forgetting is not None])

    @property
    def memory(self) -> MemoryCount:
        """What is kept besides the network, which no seed changes."""
        return self.runs[0].result.memory

    @property
    def seconds(self) -> float:
        """Of training and testing, on average."""
        return statistics.fmean(run.result.seconds.train + run.result.seconds.evaluate for run in self.runs)

    @property
    def changed_briefly(self) -> list[str]:
        """What differs from the preset, by the last words of the settings' names."""
        brief = short_names(names_of_fields(self.runs[0].config))
        return [short(f"{brief.get(field, field)}={value}") for field, value in self.changed.items()]


def gather(directory: Path, told: Told = leave_out) -> list[Run]:
    """All finished runs under a folder; what cannot be read is named and left out."""
    if not directory.is_dir():
        raise DataError(f"{directory} is not a folder; give one that `autorecall run --out` wrote")
    runs, unended = [], []
    for folder in sorted(_folders(directory, told)):
        if folder != directory and MOVED_ASIDE.search(folder.name):
            continue
        if not (folder / "result.json").exists():
            if any(is_ours(folder / name) for name in FILES):
                unended.append(f"{folder} ({'diverged' if (folder / 'stopped.json').exists() else 'unfinished'})")
            continue
        try:
            runs.append(read_run(folder))
        except AutorecallError as error:
            told(str(error))
    if unended:
        told(some(unended))
    return runs


def _folders(directory: Path, told: Told) -> Iterator[Path]:
    """The folders that hold a file of a run, at any depth; links to folders are not followed."""
    left = [directory]
    while left:
        folder = left.pop()
        try:
            with os.scandir(folder) as entries:
                found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        except OSError as error:
            told(f"cannot read {folder}: {error.strerror}")
            continue
        left += [folder / name for name, is_folder in found if is_folder]
        if any(name in FILES for name, _ in found):
            yield folder


def some(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def read_run(folder: Path) -> Run:
    """One finished run."""
    try:
        _, config = read_config(folder / "config.json")
        return Run(folder, config, read_result(folder / "result.json"))
    except AutorecallError as error:
        raise DataError(f"{folder}: {error}") from error


def grouped(runs: Sequence[Run], told: Told = leave_out) -> list[Row]:
    """Runs that differ only in the seed, in the order of the presets."""
    rows: dict[str, Row] = {}
    usual = {name: row.config for name, row in PRESETS.items()}
    found = []
    learned: dict[str, set[str]] = {}
    for run in runs:
        # Without a preset, a run is compared with the first of its name.
        preset = run.result.preset
        changed = changes(run.config, usual.setdefault(preset, run.config))
        row = Row(preset, changed | _of_its_data(run), {})
        found.append((row, run))
        learned.setdefault(row.name, set()).update(_data_of(run))
    for row, run in found:
        if len(learned[row.name]) > 1:  # no setting tells one folder of images from another
            row = replace(row, changed={**row.changed, "data": " ".join(_data_of(run)) or "unknown"})
        twin = rows.setdefault(row.name, row).by_seed.setdefault(run.result.seed, run)
        if twin is not run:  # a duplicate says nothing about how much runs differ
            told(f"{run.folder} has the same settings and seed as {twin.folder}")
    order = {name: place for place, name in enumerate(PRESETS)}
    return sorted(rows.values(), key=lambda row: (order.get(row.preset, len(order)), row.name))


def _of_its_data(run: Run) -> dict[str, object]:
    """What no setting says: which data a run that went on from another learned, and how many images of the paper's."""
    if run.result.parent:
        name = run.folder.name
        return {"learned": name.partition("+")[2] or name}  # the folder is named after the seed and the data
    share = share_of_images(run.config, run.result.steps)
    return {} if share == 1 else {PART: f"{100 * share:.0f} %"}


def _data_of(run: Run) -> list[str]:
    """What tells the data of a run from others, in a word; nothing in the earliest results.

    That of a run that went on from another depends on its parent's weights, and so on the seed; what was learned on
    each day, and what was tested, does not.
    """
    result = run.result
    days = "".join([*(lesson.data for lesson in result.lessons), result.tested]).encode()
    data = hashlib.sha256(days).hexdigest() if result.parent and result.lessons else result.data
    return [data[:8]] if data else []


def notes_on(rows: Sequence[Row], shown: Callable[[str], str]) -> list[str]:
    """What the figures of these rows mean; `shown` makes text from files fit to be shown."""
    notes = _meanings(rows) + [note for row in rows for note in _mixed(row, shown)]
    return notes + [note for row in rows for note in _tasks(row, shown)]


def _meanings(rows: Sequence[Row]) -> list[str]:
    """What ± means, in our figures and in the paper's."""
    meanings: dict[str, list[str]] = {}
    for row in rows:
        if row.published is not None:
            meanings.setdefault(row.published.spread, []).append(row.name)
    notes = ["Measured: mean ± standard deviation over seeds, in percent; a single run has no ±. 1 MB is 10⁶ bytes."]
    return notes + [f"Paper's ±: {meaning} ({', '.join(names)})." for meaning, names in meanings.items()]


def _tasks(row: Row, shown: Callable[[str], str]) -> list[str]:
    """The tasks of a user's own data, by the names of their classes."""
    if not is_own(row.runs[0].config.dataset) or not row.runs[0].result.tasks:
        return []
    tasks = [task_label(classes, 60) for classes in row.runs[0].result.tasks]
    more = f"; and {len(tasks) - MOST_COLUMNS:,} more" if len(tasks) > MOST_COLUMNS else ""
    return [f"{shown(short(row.name))}: tasks {shown('; '.join(tasks[:MOST_COLUMNS]))}{more}."]


def _mixed(row: Row, shown: Callable[[str], str]) -> list[str]:
    """In what the runs of a row differ although their settings do not."""
    notes = []
    for part, key, called in COMPUTED_WITH:
        seeds: dict[str, list[int]] = {}
        for run in row.runs:
            seeds.setdefault(getattr(run.result, part).get(key, "not recorded"), []).append(run.result.seed)
        if len(seeds) > 1:
            values = "; ".join(
                f"{shown(value)}: seed{'s' * (len(having) > 1)} {some([str(seed) for seed in sorted(having)])}"
                for value, having in sorted(seeds.items())
            )
            said = f"{shown(short(row.name))}: not all on the same {called} ({values})"
            notes.append(f"{said}; the same seed gives other figures there.")
    return notes


def short(name: str) -> str:
    """The name of a row, without the rest of long lists."""
    return re.sub(r"\[([^][,]+, [^][,]+), [^][]+\]", r"[\1, …]", name)
