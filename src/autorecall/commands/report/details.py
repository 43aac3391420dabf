"""Everything that a report says about one run, and about the runs of one row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup
from PIL import Image, UnidentifiedImageError

from ...config import RunConfig
from ...data import cifar10
from ...errors import AutorecallError, ConfigError, DataError
from ...runs.folder import RECALLED
from ...runs.result import Point, Result
from ...storage.files import regular_file
from ..histories import Means, points_of, read_means
from ..matrix import task_label
from ..rows import Run
from .again import command_for
from .charts import LARGE, SMALL, Density, LineChart, density, line_chart, number, png_uri

LARGEST_PICTURE = 2 * 2**20  # bytes
MOST_PIXELS = 20_000_000
MOST_BARS = 20  # tasks or classes; more have no bars beside the slider
MANY = 20  # runs, of which each has its picture
SHADES = 10  # of the heat map


@dataclass
class Budget:
    """How much a report may hold: points of a curve, bytes of pictures, and for how many runs of a row."""

    points: int
    picture_bytes: int
    pictures: int

    @classmethod
    def of(cls, runs: int) -> Budget:
        """Fewer points if there are many runs."""
        return cls(max(60, min(200, 6000 // runs)), 8_000_000, runs if runs <= MANY else 1)


@dataclass(frozen=True)
class Heat:
    """A cell of the matrix of accuracies."""

    text: str
    shade: int


@dataclass(frozen=True)
class Bar:
    """A number beside the slider; its share of the width is in percent."""

    label: str
    value: float


@dataclass(frozen=True)
class RunDetails:
    """One run."""

    seed: int
    folder: str
    accuracy: str
    forgetting: str | None
    tasks: list[str]
    matrix: list[list[Heat]]
    lost: list[str]
    """What became less known of each task, from its best moment to the end."""
    curve: LineChart | None
    recalled: Density | None
    terms: list[LineChart]
    task_bars: list[Bar]
    class_bars: list[Bar]
    times: dict[str, object]
    """What the slider needs: numbers alone."""
    picture: Markup | None
    picture_note: str
    facts: list[tuple[str, str]]
    machine: list[tuple[str, str]]
    command: str | None
    notes: list[str]


def run_details(run: Run, roots: Sequence[Path], budget: Budget, pictured: bool) -> RunDetails:
    """One run; what cannot be read of it is noted."""
    result, notes = run.result, list[str]()
    tasks = [f"{place}: {task_label(names, 24)}" for place, names in enumerate(result.tasks, start=1)]
    tasks = tasks or [f"{place}" for place in range(1, len(result.accuracy_matrix) + 1)]
    try:
        means = read_means(run.folder, max(1, result.steps), budget.points)
    except AutorecallError as error:
        notes.append(f"Without losses and recalled classes: {_named(str(error), run, roots)}.")
        means = Means([], {}, [])
    shares = means.recalled_classes()
    classes = _class_names(run, 0 if shares is None else shares.shape[1])
    picture, picture_note = _picture(run, budget if pictured else Budget(0, 0, 0))
    points = _thinned(points_of(result, means), budget.points)
    recalled = None if shares is None else np.nan_to_num(shares)
    return RunDetails(
        seed=result.seed,
        folder=_relative(run.folder, roots),
        accuracy=f"{result.accuracy:.1f}",
        forgetting=None if result.forgetting is None else f"{result.forgetting:.1f}".replace("-", "−"),
        tasks=tasks,
        matrix=[[Heat(f"{value:.1f}", round(value / 100 * SHADES)) for value in row] for row in result.accuracy_matrix],
        lost=_lost(result),
        curve=_curve(result, points, tasks, means.task_ends),
        recalled=None if recalled is None else density(recalled, classes, result.steps, means.task_ends),
        terms=_terms(run.config, means, result.steps),
        task_bars=_bars(tasks, result.accuracy_matrix[-1], 100.0),
        class_bars=[] if recalled is None else _bars(classes, recalled[-1].tolist(), float(recalled.max()) or 1.0),
        times=_times(result, points, recalled),
        picture=picture,
        picture_note=picture_note,
        facts=_facts(run),
        machine=[*result.machine.items(), *result.versions.items()],
        command=command_for(run),
        notes=notes,
    )


def _relative(folder: Path, roots: Sequence[Path]) -> str:
    """Where a run is; what stands before the folder that was given says more about the machine than about the run."""
    for root in roots:
        if folder.is_absolute() and folder.is_relative_to(root):
            return str(Path(root.name) / folder.relative_to(root))
    return str(folder)


def _named(sentence: str, run: Run, roots: Sequence[Path]) -> str:
    return sentence.replace(str(run.folder), _relative(run.folder, roots))


def _class_names(run: Run, count: int) -> list[str]:
    """The names of classes by their numbers, as far as the run says."""
    names = [str(label) for label in range(count)]
    if run.config.dataset == "cifar10" and count == len(cifar10.CLASSES):
        return list(cifar10.CLASSES)
    if run.result.parent or run.config.stream.order:  # whose tasks do not tell which number a class has
        return names
    try:
        tasks = run.config.stream.task_classes(names)
    except ConfigError:
        return names
    if [len(labels) for labels in tasks] == [len(said) for said in run.result.tasks]:
        for labels, said in zip(tasks, run.result.tasks, strict=True):
            for label, name in zip(labels, said, strict=True):
                names[label] = name
    return names


def _thinned(points: Sequence[Point], most: int) -> list[Point]:
    """At most about so many of them, with the first and the last."""
    every = max(1, math.ceil(len(points) / most))
    kept = list(points[::every])
    return kept if not points or kept[-1] is points[-1] else [*kept, points[-1]]


def _lost(result: Result) -> list[str]:
    *earlier, last = result.accuracy_matrix
    if not earlier:
        return []
    lost = [max(row[task] for row in earlier) - last[task] for task in range(len(last) - 1)]
    return [f"{value:.1f}".replace("-", "−") for value in lost] + ["–"]


def _curve(result: Result, points: Sequence[Point], tasks: Sequence[str], task_ends: Sequence[int]) -> LineChart | None:
    if not points or result.steps < 1:
        return None
    series = {f"task {name}": [point.accuracies[task] for point in points] for task, name in enumerate(tasks)}
    steps = [point.step for point in points]
    return line_chart("Accuracy on each task in %", steps, series, result.steps, task_ends, LARGE, (0.0, 100.0))


def _terms(config: RunConfig, means: Means, steps: int) -> list[LineChart]:
    """Every number of a step: losses first, as the history has them."""
    charts = []
    for name, values in means.columns.items():
        if name.startswith("recalled_class_") or not bool(np.isfinite(values).any()):
            continue
        weight = getattr(config.learner, name, None)
        note = f"weight {number(weight)}" if isinstance(weight, float | int) and not isinstance(weight, bool) else ""
        words = name.replace("_", " ")
        charts.append(line_chart(words, means.ends, {words: values.tolist()}, steps, means.task_ends, SMALL, note=note))
    return charts


def _bars(labels: Sequence[str], values: Sequence[float], most: float) -> list[Bar]:
    if len(labels) > MOST_BARS or len(labels) < 2:
        return []
    return [Bar(label, round(100 * value / most, 1)) for label, value in zip(labels, values, strict=True)]


def _times(result: Result, points: Sequence[Point], recalled: object) -> dict[str, object]:
    times: dict[str, object] = {
        "last": result.steps,
        "steps": [point.step for point in points],
        "accuracies": [[round(value, 1) for value in point.accuracies] for point in points]
        if len(result.accuracy_matrix) <= MOST_BARS
        else [],
    }
    if isinstance(recalled, np.ndarray):
        few = recalled.shape[1] <= MOST_BARS
        times["most"] = round(float(recalled.max()) or 1.0, 4)
        times["shares"] = np.round(recalled, 3).tolist() if few else []
    return times


def _picture(run: Run, budget: Budget) -> tuple[Markup | None, str]:
    """The picture of recalled images, if there is one and it is what it claims to be."""
    path = run.folder / RECALLED
    if not path.exists():
        return None, ""
    try:
        with regular_file(path) as file:
            content = file.read(LARGEST_PICTURE + 1)
        if len(content) > LARGEST_PICTURE:
            raise DataError("it is too large")
        _check_png(path)
    except (AutorecallError, OSError, ValueError, UnidentifiedImageError, SyntaxError) as error:
        return None, f"{RECALLED} is left out, because it is not a picture that a run draws ({type(error).__name__})."
    if len(content) > budget.picture_bytes:
        return None, f"{RECALLED} is left out, because this report already holds many; it is in the folder of the run."
    budget.picture_bytes -= len(content)
    return png_uri(content), ""


def _check_png(path: Path) -> None:
    with regular_file(path) as file, Image.open(file, formats=["PNG"]) as image:
        if image.width * image.height > MOST_PIXELS:
            raise DataError("it has too many pixels")
        image.load()


def _facts(run: Run) -> list[tuple[str, str]]:
    result, seconds = run.result, run.result.seconds
    per_step = f", {number(1000 * seconds.train / result.steps)} ms per step" if result.steps else ""
    facts = [
        ("accuracy measured on", "validation images" if result.split == "val" else "test images"),
        ("steps", f"{result.steps:,}"),
        ("training", duration(seconds.train) + per_step),
        ("testing", duration(seconds.evaluate)),
    ]
    if result.left_out:
        facts.append(("images left out", f"{result.left_out:,}, which could not be read"))
    if result.parent:
        facts.append(("went on from", result.parent))
    if result.data:
        facts.append(("checksum of the data", result.data[:16]))
    return facts


def duration(seconds: float) -> str:
    """A time as a person says it.

    >>> duration(0.25), duration(75), duration(9000)
    ('0.2 s', '75.0 s', '2.5 h')
    """
    return (
        f"{seconds:.1f} s"
        if seconds < 120
        else f"{seconds / 60:.1f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )
