"""history.csv as a picture needs it: means over stretches of equal length, however many steps there are."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..runs.history import NAME
from ..runs.result import Point, Result
from ..storage.files import regular_file

LARGEST = 2**30  # bytes
MOST_COLUMNS = 10_000
BLOCK = 4096  # rows that are held at a time
RECALLED = "recalled_class_"

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Means:
    """The numbers of a run over time."""

    ends: list[int]
    """The last step of each stretch."""
    columns: dict[str, Values]
    """The means of each column, NaN where it has no number."""
    task_ends: list[int]
    """The last step of each task, as far as the history says."""

    def recalled_classes(self) -> Values | None:
        """The shares of classes among the recalled images, stretches × classes; None if nothing is recalled."""
        names = [name for name in self.columns if name.startswith(RECALLED)]
        return np.stack([self.columns[name] for name in names], axis=1) if names else None


def read_means(folder: Path, steps: int, points: int) -> Means:
    """The history in a run's folder, in at most so many stretches; what is not of such a run is a DataError."""
    path = folder / NAME
    points = max(1, min(points, steps))
    try:
        with regular_file(path) as file, io.TextIOWrapper(file, "utf-8", newline="") as text:
            if os.fstat(file.fileno()).st_size > LARGEST:
                raise ValueError(f"it is larger than {LARGEST // 2**30} GiB")
            return _means(csv.reader(text, strict=True), steps, points)
    except (ValueError, csv.Error) as error:
        raise DataError(f"{path} is damaged, or not of this run ({error}); make the run again") from error


def points_of(result: Result, means: Means) -> list[Point]:
    """The curve of accuracy; without one, the tests at the ends of tasks."""
    rows = result.accuracy_matrix[-len(means.task_ends) :]  # a run that goes on has a row of what it knew before
    return result.curve or [Point(end, row) for end, row in zip(means.task_ends, rows, strict=False)]


def _means(rows: Iterator[list[str]], steps: int, points: int) -> Means:
    names = next(rows, [])
    if "step" not in names or len(set(names)) < len(names) or len(names) > MOST_COLUMNS:
        raise ValueError("its first line does not name its columns")
    sums, counts = np.zeros((2, points, len(names)))
    task_ends: dict[int, int] = {}
    while block := list(islice(rows, BLOCK)):
        values = _numbers(block, len(names))
        at = values[:, names.index("step")]
        if not bool(((at >= 1) & (at <= steps)).all()):
            raise ValueError(f"it has steps beyond 1 to {steps}")
        bins = ((at.astype(np.int64) - 1) * points) // steps
        finite = np.isfinite(values)
        np.add.at(sums, bins, np.where(finite, values, 0.0))
        np.add.at(counts, bins, finite)
        if "task" in names:
            tasks = values[:, names.index("task")]
            task_ends |= {int(task): int(at[tasks == task].max()) for task in np.unique(tasks[np.isfinite(tasks)])}
    with np.errstate(invalid="ignore"):
        means = sums / counts
    ends = [-(-steps * (point + 1) // points) for point in range(points)]
    columns = {name: means[:, place] for place, name in enumerate(names) if name not in ("step", "task")}
    return Means(ends, columns, [task_ends[task] for task in sorted(task_ends)])


def _numbers(rows: Sequence[Sequence[str]], columns: int) -> Values:
    if any(len(row) != columns for row in rows):
        raise ValueError("a row has more or fewer cells than the first line")
    return np.array([[float(cell or "nan") for cell in row] for row in rows])
