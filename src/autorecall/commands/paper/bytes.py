"""Accuracy against what is kept, a study of our own: patch filters of many sizes, beside every method with runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ...presets import PRESETS
from .. import drawing
from ..table import Cell, Figure, Table
from .study import Place, Row, Study, part_of, write_table
from .tables import NOT_PUBLISHED, is_of_main_table, label_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Small ones have smaller patches, whose whitening takes less, and too few numbers for covariances of classes.
_SMALL: Mapping[str, object] = {"learner.weight": 0.0, "learner.own_features": None, "network.frequencies": 4}
SIZES: dict[str, tuple[Mapping[str, object], ...]] = {
    "mnist": tuple({"network.filters": filters} for filters in (6, 12, 23, 42, 50, 77, 134, 246)),
    "cifar10": (
        {**_SMALL, "network.size": 3, "network.filters": 12},
        {**_SMALL, "network.size": 4, "network.filters": 36},
        {"network.frequencies": 4, "learner.own_features": 72, "network.size": 5, "network.filters": 66},
        {"network.frequencies": 4, "learner.own_features": 72, "network.filters": 150},
        {},
        {"network.columns": None, "network.filters": 277},
        {"network.columns": None, "network.filters": 517},
    ),
}


@dataclass(frozen=True)
class _Point:
    """A method: what it keeps, and what it reaches."""

    row: Row
    seeds: int
    accuracy: Figure
    numbers: int
    images: int
    megabytes: float


class Bytes(Study):
    """How much accuracy a byte buys."""

    name = "bytes"
    what = "ours: accuracy against what is kept, from ten thousand numbers to ten million"
    _TITLES: ClassVar = {"mnist": "MNIST-5k", "cifar10": "CIFAR10"}

    def rows(self, seeds: int, fraction: float) -> list[Row]:
        """Patch filters; one seed of each size. The other methods are drawn as far as other studies have run them."""
        return [row for dataset in SIZES for row in self._sizes(dataset, fraction)]

    def write(self, place: Place, seeds: int, fraction: float) -> list[Path]:
        """A figure for all datasets, and a table for each."""
        curves = {name: _points(place, self._sizes(name, fraction)) for name in SIZES}
        others = {name: _points(place, _others(name, seeds, fraction)) for name in SIZES}
        shown = [name for name in SIZES if curves[name]]
        written: list[Path] = []
        for name in shown:
            lines = [_line(point) for point in sorted(curves[name] + others[name], key=lambda point: point.megabytes)]
            header = ("method", "filters", "numbers", "images", "MB", "seeds", "accuracy")
            title = part_of(f"Accuracy against what is kept, {self._TITLES[name]}", fraction)
            notes = ["† All classes mixed.", "In percent, on the test images. MB: numbers of 4 bytes, and images."]
            written += write_table(place, f"{self.name}-{name}", fraction, Table(title, header, lines, notes))
        if not shown:
            return []
        figure = drawing.new_figure(5.2 * len(shown), 4.0)
        for ax, name in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
            _draw(ax, curves[name], others[name])
            ax.set_title(self._TITLES[name], fontsize=10)
        return written + drawing.save(figure, place.stem(self.name, fraction))

    def _sizes(self, dataset: str, fraction: float) -> list[Row]:
        preset = f"{dataset}/patches"
        return [Row.of("Patch filters", preset, 1, fraction, changed) for changed in SIZES[dataset]]


def _others(dataset: str, seeds: int, fraction: float) -> list[Row]:
    """All rows of the main table but patch filters."""
    names = [name for name in PRESETS if name.startswith(f"{dataset}/") and is_of_main_table(name)]
    return [Row.of(label_of(name), name, seeds, fraction) for name in names if not name.endswith("/patches")]


def _points(place: Place, rows: list[Row]) -> list[_Point]:
    found = []
    for row in rows:
        runs = place.runs(row)
        accuracy = Figure.over([run.result.accuracy for run in runs])
        if accuracy is not None:
            memory = runs[0].result.memory
            kept = memory.number_mb + memory.image_mb
            found.append(_Point(row, len(runs), accuracy, memory.numbers, memory.images, kept))
    return found


def _line(point: _Point) -> list[Cell]:
    filters = getattr(point.row.config.network, "filters", None)
    kept: list[Cell] = [point.numbers, point.images, f"{point.megabytes:.2f}"]
    return [point.row.label, filters, *kept, point.seeds, point.accuracy]


def _draw(ax: Axes, curve: list[_Point], others: list[_Point]) -> None:
    """A line through the sizes of patch filters, and a dot for each other method; what keeps nothing is a level."""
    first, second, third = drawing.COLOURS[:3]
    curve = sorted(curve, key=lambda point: point.megabytes)
    kept, reached = [point.megabytes for point in curve], [point.accuracy.value for point in curve]
    ax.plot(kept, reached, "o-", markersize=4, color=first, label="patch filters, streaming LDA (ours)")
    ax.plot([], [], "s", markersize=4, color=second, label="systems of the paper, as run here")
    ax.plot([], [], "D", markersize=4, color=third, label="others that are not in the paper")
    dots = []
    for point in sorted(others, key=lambda point: -point.accuracy.value):
        label, height = point.row.label.removesuffix(NOT_PUBLISHED), point.accuracy.value
        if not point.megabytes:
            ax.axhline(height, color="0.6", linewidth=0.8, linestyle="--", zorder=0)
            level = "all classes mixed" if point.row.config.stream.stationary else "naive SGD"
            ax.text(0.01, height + 1, level, transform=ax.get_yaxis_transform(), fontsize=7, color="0.4")
            continue
        published = label == point.row.label
        ax.plot(point.megabytes, height, "s" if published else "D", markersize=4, color=second if published else third)
        dots.append((label, (point.megabytes, height)))
    ax.set_xscale("log")
    ax.set_xlim(0.006, 60)
    ax.set_xticks((0.01, 0.1, 1, 10), ("0.01", "0.1", "1", "10"))
    ax.set_ylim(0, 103)
    ax.set_xlabel("kept besides the network, in MB")
    ax.set_ylabel("accuracy in %")
    drawing.tidy(ax)
    ax.legend(fontsize=7, loc="lower left", frameon=False, labelspacing=0.2, borderaxespad=0)  # stays below naive SGD
    drawing.name_points(ax, [label for label, _ in dots], [dot for _, dot in dots])
