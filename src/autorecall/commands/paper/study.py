"""What a study is: the runs that it needs, and what it writes from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...config import RunConfig
from ...errors import DataError
from ...presets import PRESETS
from ...runs.history import NAME as HISTORY
from ...runs.names import run_folder
from ...storage.files import make_folder, write_text
from ...storage.schema import with_field
from ..histories import read_means
from ..many import finished
from ..rows import Run
from ..table import Table
from ..worker import Job


@dataclass(frozen=True)
class Row:
    """A line of a table or a curve of a figure: a preset with some settings changed, over seeds."""

    label: str
    preset: str
    config: RunConfig
    seeds: int
    keep_learner: bool = False
    draw_curve: bool = False

    @classmethod
    def of(
        cls,
        label: str,
        preset: str,
        seeds: int,
        fraction: float,
        changed: Mapping[str, object] | None = None,
        keep_learner: bool = False,
        draw_curve: bool = False,
    ) -> Row:
        """`changed` are settings by their command-line names, such as learner.diversity."""
        config = replace(PRESETS[preset].config, fraction=fraction)
        for name, value in (changed or {}).items():
            config = with_field(config, name, value)
        return cls(label, preset, config, seeds, keep_learner, draw_curve)

    def configs(self) -> Iterator[RunConfig]:
        """One for each seed."""
        return (replace(self.config, seed=seed) for seed in range(self.seeds))


@dataclass(frozen=True)
class Place:
    """Where runs are, and where what is written goes."""

    out: Path
    data: Path | None = None
    into: Path | None = None
    """Where tables and figures go, if not to `out`/paper."""

    def job(self, row: Row, config: RunConfig) -> Job:
        """The run of one seed."""
        folder = str(run_folder(self.out, row.preset, config))
        data = None if self.data is None else str(self.data)
        return Job(row.preset, config, folder, data, row.keep_learner, row.draw_curve)

    def jobs(self, rows: Sequence[Row]) -> list[Job]:
        """All runs of these rows, each once, with all that one of the rows wants."""
        found: dict[str, Job] = {}
        for row in rows:
            for config in row.configs():
                job = self.job(row, config)
                twin = found.get(job.folder, job)
                # Studies that need no curve ask for none; one that does gets it.
                points = max(job.config.curve_points, twin.config.curve_points)
                found[job.folder] = replace(
                    job,
                    config=replace(job.config, curve_points=points),
                    keep_learner=job.keep_learner or twin.keep_learner,
                    draw_curve=job.draw_curve or twin.draw_curve,
                )
        return list(found.values())

    def runs(self, row: Row) -> list[Run]:
        """The runs of a row that there are."""
        found = []
        for config in row.configs():
            job = self.job(row, config)
            result = finished(replace(job, keep_learner=False, draw_curve=False))
            if result is not None:
                found.append(Run(Path(job.folder), config, result))
        return found

    @property
    def paper(self) -> Path:
        """The folder of tables and figures."""
        return self.into or self.out / "paper"

    def file(self, name: str, fraction: float, kind: str) -> Path:
        """A file of a study; a shortened one has another name."""
        short = "" if fraction == 1 else f"+fraction={fraction:g}"
        return self.paper / f"{name}{short}.{kind}"

    def stem(self, name: str, fraction: float) -> Path:
        """The files of a figure or table without their endings, in a folder that there is."""
        path = self.file(name, fraction, "md")
        make_folder(path.parent)
        return path.with_name(path.name.removesuffix(".md"))


class Study(ABC):
    """One table or figure."""

    name: str
    what: str
    """What it shows, in a few words."""

    @abstractmethod
    def rows(self, seeds: int, fraction: float) -> list[Row]:
        """The runs that it needs."""

    def wanted(self, place: Place, seeds: int, fraction: float) -> list[Row]:
        """Those whose runs are needed now; a study that keeps what it found does not need them again."""
        return self.rows(seeds, fraction)

    @abstractmethod
    def write(self, place: Place, seeds: int, fraction: float) -> list[Path]:
        """Write it from the runs that there are, and return the files; none if there are too few runs."""


def write_table(place: Place, name: str, fraction: float, table: Table) -> list[Path]:
    """A table in all its formats."""
    written = []
    for kind, text in (("md", table.markdown()), ("tex", table.latex()), ("csv", table.csv())):
        stem = place.stem(name, fraction)
        path = stem.with_name(f"{stem.name}.{kind}")
        write_text(path, text)
        written.append(path)
    return written


def share_of(dataset: str, fraction: float) -> float:
    """The part of a stream for what needs many runs: natural images take long, so a tenth of theirs at most."""
    return fraction if dataset == "mnist" else min(fraction, 0.1)


def part_of(title: str, fraction: float) -> str:
    """A title that says so if it is about shortened streams.

    >>> part_of("Accuracy", 1), part_of("Accuracy", 0.1)
    ('Accuracy', 'Accuracy, the first 10 % of every task')
    """
    return title if fraction == 1 else f"{title}, the first {100 * fraction:g} % of every task"


def percent(share: float) -> str:
    """A part of the images of a dataset."""
    return f"{100 * share:.0f} % of its images"


def class_history(run: Run) -> NDArray[np.float64]:
    """The mean probabilities of classes among the recalled images: steps × classes, NaN where nothing was recalled."""
    shares = read_means(run.folder, run.result.steps, run.result.steps).recalled_classes()
    if shares is None:
        raise DataError(f"{run.folder / HISTORY} is damaged, or not of a run that recalls; make the run again")
    return shares
