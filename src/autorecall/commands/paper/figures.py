"""The figures that are drawn from histories and results: accuracy, recalled classes, diversity, suppression."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from ...data import cifar10
from ...presets import share_of_images
from .. import drawing
from ..rows import Run
from ..table import Cell, Figure, Table
from .study import Place, Row, Study, class_history, part_of, percent, share_of, write_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

FEWEST = 3  # points of a curve that has an optimum
BINS = 150  # columns of a density picture
DATASETS = {"mnist": "MNIST", "cifar10": "CIFAR10", "miniimagenet": "MiniImageNet"}


class Accuracy(Study):
    """Accuracy of every task over training."""

    name = "accuracy"
    what = "accuracy of every task over training, without and with recall, for each dataset"

    def rows(self, seeds: int, fraction: float) -> list[Row]:
        """Naive SGD and ARM."""
        names = [f"{dataset}/{method}" for dataset in DATASETS for method in ("naive", "arm")]
        return [Row.of(name, name, seeds, fraction, draw_curve=True) for name in names]

    def write(self, place: Place, seeds: int, fraction: float) -> list[Path]:
        """Left without, right with recall; a row for each dataset that has runs."""
        found = {row.preset: with_curves(place.runs(row)) for row in self.rows(seeds, fraction)}
        shown = [dataset for dataset in DATASETS if found[f"{dataset}/naive"] and found[f"{dataset}/arm"]]
        if not shown:
            return []
        figure = drawing.new_figure(8.5, 2.7 * len(shown))
        axes = figure.subplots(len(shown), 2, squeeze=False, sharey=True)
        for line, dataset in zip(axes, shown, strict=True):
            for ax, method, words in zip(line, ("naive", "arm"), ("without recall", "with recall (ARM)"), strict=True):
                runs = found[f"{dataset}/{method}"]
                draw_accuracy(ax, runs, legend=method == "arm")
                share = share_of_images(runs[0].config, runs[0].result.steps)
                parts = [] if share == 1 else [percent(share)]
                title = part_of(f"{DATASETS[dataset]}, {words}", fraction)
                ax.set_title(f"{title}\n{', '.join([*parts, over_seeds(len(runs))])}", fontsize=9)
            line[0].set_ylabel("accuracy in %")
        for ax in axes[-1]:
            ax.set_xlabel("step")
        return drawing.save(figure, place.stem(self.name, fraction))


class History(Study):
    """Which classes are recalled."""

    name = "history"
    what = "CIFAR10: recalled classes over training, for three weights of diversity"
    _WEIGHTS: ClassVar = (1.0, 4.0, 16.0)

    def rows(self, seeds: int, fraction: float) -> list[Row]:
        """ARM with three λ3; one seed shows it."""
        return [
            Row.of(f"λ3 = {weight:g}", "cifar10/arm", 1, fraction, {"learner.diversity": weight})
            for weight in self._WEIGHTS
        ]

    def write(self, place: Place, seeds: int, fraction: float) -> list[Path]:
        """Density pictures side by side."""
        found = [(row, run) for row in self.rows(seeds, fraction) for run in place.runs(row)]
        if not found:
            return []
        figure = drawing.new_figure(3.4 * len(found) + 0.6, 3.3)
        figure.suptitle(part_of("CIFAR10", fraction), fontsize=10)
        axes = figure.subplots(1, len(found), squeeze=False, sharey=True)[0]
        images = draw_histories(axes, [run for _, run in found])
        for ax, (row, _) in zip(axes, found, strict=True):
            ax.set_title(row.label, fontsize=10)
        label_classes(axes[0])
        figure.colorbar(images[0], ax=list(axes), label="share of the recalled images", shrink=0.9)
        return drawing.save(figure, place.stem(self.name, fraction))


class Suppressed(Study):
    """Two recalls per step."""

    name = "suppressed"
    what = "CIFAR10 with two recalls per step: recalled classes and accuracy"

    def rows(self, seeds: int, fraction: float) -> list[Row]:
        """Once, for contrast, and twice."""
        rows = (("one recall per step", "cifar10/arm"), ("two recalls per step", "cifar10/ablation-recall-2-times"))
        return [Row.of(label, name, 1, fraction, draw_curve=True) for label, name in rows]

    def write(self, place: Place, seeds: int, fraction: float) -> list[Path]:
        """A row each: which classes are recalled, and the accuracy of tasks; one without the other says nothing."""
        rows = self.rows(seeds, fraction)
        found = [(row, run) for row in rows for run in with_curves(place.runs(row))]
        if len(found) < len(rows):
            return []
        figure = drawing.new_figure(8.5, 2.9 * len(found) + 0.3)
        figure.suptitle(part_of("CIFAR10", fraction), fontsize=10)
        axes = figure.subplots(len(found), 2, squeeze=False)
        images = draw_histories(list(axes[:, 0]), [run for _, run in found])
        for line, image, (row, run) in zip(axes, images, found, strict=True):
            label_classes(line[0])
            figure.colorbar(image, ax=line[0], label="share of the recalled images")
            draw_accuracy(line[1], [run])
            line[1].set_ylabel("accuracy in %")
            for ax in line:
                ax.set_title(row.label, fontsize=10)
                ax.set_xlabel("step")
        return drawing.save(figure, place.stem(self.name, fraction))


@dataclass(frozen=True)
class Curve:
    """Accuracy against λ3 on one stream, over the seeds that all its weights have."""

    points: list[tuple[float, Figure]]
    seeds: int
    complete: bool
    """Whether there are runs of all weights."""

    @property
    def best(self) -> float:
        """The weight with the highest accuracy."""
        return max(self.points, key=lambda point: point[1].value)[0]


class Diversity(Study):
    """Accuracy against λ3."""

    name = "diversity"
    what = "accuracy against the weight of diversity for streams of 4 to 100 classes, the best one starred"
    _WEIGHTS: ClassVar = (0.25, 1.0, 4.0, 16.0, 64.0)
    _FEWER: ClassVar = {4: 2, 6: 3, 8: 4}  # classes of MNIST, and the tasks that have them

    def rows(self, seeds: int, fraction: float) -> list[Row]:
        """ARM on each stream."""
        rows = []
        for dataset, name in DATASETS.items():
            part = share_of(dataset, fraction)
            fewer = self._FEWER if dataset == "mnist" else {}
            for classes, tasks in {**fewer, 100 if dataset == "miniimagenet" else 10: None}.items():
                shorter = {} if tasks is None else {"stream.first_tasks": tasks}
                label = f"{name}, {classes} classes"
                rows += [
                    Row.of(label, f"{dataset}/arm", seeds, part, {"learner.diversity": weight, **shorter})
                    for weight in self._WEIGHTS
                ]
        return rows

    def curves(self, place: Place, seeds: int, fraction: float) -> dict[str, Curve]:
        """Those of the streams with runs of several weights."""
        streams: dict[str, dict[float, dict[int, float]]] = {}
        for row in self.rows(seeds, fraction):
            accuracies = {run.config.seed: run.result.accuracy for run in place.runs(row)}
            if accuracies:
                weight = float(getattr(row.config.learner, "diversity"))  # noqa: B009 - it is ARM's
                streams.setdefault(row.label, {})[weight] = accuracies
        found = {}
        for stream, weights in streams.items():
            shared = set.intersection(*(set(accuracies) for accuracies in weights.values()))
            if shared and len(weights) >= FEWEST:
                points = [(weight, _over(accuracies, shared)) for weight, accuracies in weights.items()]
                found[stream] = Curve(points, len(shared), len(points) == len(self._WEIGHTS))
        return found

    def write(self, place: Place, seeds: int, fraction: float) -> list[Path]:
        """A plot for each dataset with a curve for each number of classes, and the numbers."""
        curves = self.curves(place, seeds, fraction)
        if not curves:
            return []
        shown = [name for name in DATASETS.values() if any(stream.startswith(f"{name},") for stream in curves)]
        figure = drawing.new_figure(3.4 * len(shown) + 0.4, 3.2)
        axes = dict(zip(shown, figure.subplots(1, len(shown), squeeze=False)[0], strict=True))
        lines: list[list[Cell]] = []
        many = Counter(stream.partition(", ")[0] for stream in curves)
        for (stream, curve), colour in zip(curves.items(), drawing.colours(len(curves)), strict=True):
            name, _, classes = stream.partition(", ")
            place_among = len(axes[name].containers) - (many[name] - 1) / 2
            _draw_optimum(axes[name], curve, f"{classes}, {over_seeds(curve.seeds)}", colour, place_among)
            for weight, accuracy in curve.points:
                lines.append([name, classes.removesuffix(" classes"), f"{weight:g}", curve.seeds, accuracy])
        for dataset, name in DATASETS.items():
            if name not in axes:
                continue
            ax = axes[name]
            ax.set_title(part_of(name, share_of(dataset, fraction)), fontsize=10)
            ax.set_xlabel("weight of diversity λ3")
            ax.legend(fontsize=7)
            drawing.tidy(ax)
        axes[shown[0]].set_ylabel("accuracy in %")
        title = part_of("Accuracy of ARM against λ3", fraction)
        natural = share_of("cifar10", fraction)
        notes = ["Mean ± standard deviation over the seeds that all weights of a stream have, in percent."]
        if natural != fraction:
            notes.append(f"Natural images: {part_of('streams', natural).partition(', ')[2]}.")
        table = Table(title, ("dataset", "classes", "λ3", "seeds", "accuracy"), lines, notes)
        drawn = drawing.save(figure, place.stem(self.name, fraction))
        return drawn + write_table(place, self.name, fraction, table)


def _over(accuracies: Mapping[int, float], seeds: Iterable[int]) -> Figure:
    found = Figure.over([accuracies[seed] for seed in sorted(seeds)])
    assert found is not None
    return found


def _draw_optimum(ax: Axes, curve: Curve, label: str, colour: str, shift: float) -> None:
    weights, values = [weight for weight, _ in curve.points], [figure.value for _, figure in curve.points]
    spread = [figure.spread or 0.0 for _, figure in curve.points]
    beside = [weight * 1.08**shift for weight in weights]  # so that spreads do not cover each other
    ax.errorbar(beside, values, yerr=spread, color=colour, marker="o", markersize=4, capsize=2, label=label)
    best = weights.index(curve.best)
    ax.plot(beside[best], values[best], marker="*", markersize=15, color=colour, markeredgecolor="black", zorder=9)
    ax.set_xscale("log", base=4)
    ax.set_xticks(weights, [f"{weight:g}" for weight in weights])


def with_curves(runs: Sequence[Run]) -> list[Run]:
    """Those that tested more often than once per task, all at the same steps: those of the first."""
    drawn = [run for run in runs if run.result.curve]
    return [run for run in drawn if _steps(run) == _steps(drawn[0])]


def _steps(run: Run) -> list[int]:
    return [point.step for point in run.result.curve]


def draw_accuracy(ax: Axes, runs: Sequence[Run], legend: bool = True) -> None:
    """A line for each task: the mean over runs."""
    accuracies = np.mean([[point.accuracies for point in run.result.curve] for run in runs], axis=0)
    tasks = accuracies.shape[1]
    length = runs[0].result.steps / tasks
    ends = [round(length * (task + 1)) for task in range(tasks)]
    drawing.draw_tasks(ax, _steps(runs[0]), accuracies, ends, legend)


def over_seeds(seeds: int) -> str:
    """How many runs a curve is the mean of."""
    return "one seed" if seeds == 1 else f"{seeds} seeds"


def draw_histories(axes: Sequence[Axes], runs: Sequence[Run]) -> list[AxesImage]:
    """Classes against time; the brighter, the more of the recalled images, by the same scale in all of them."""
    histories = [class_history(run) for run in runs]
    densities = [binned(shares, min(BINS, len(shares))) for shares in histories]
    brightest = max(density.max() for density in densities)
    images = []
    for ax, density, (steps, classes) in zip(axes, densities, (shares.shape for shares in histories), strict=True):
        image = ax.imshow(
            density.T,
            aspect="auto",
            cmap=drawing.DENSITY,
            vmin=0,
            vmax=brightest,
            interpolation="nearest",
            extent=(0, steps, classes - 0.5, -0.5),
        )
        ax.set_xlabel("step")
        images.append(image)
    return images


def label_classes(ax: Axes) -> None:
    """CIFAR10's names on the axis of classes."""
    ax.set_yticks(range(len(cifar10.CLASSES)), cifar10.CLASSES, fontsize=8)


def binned(values: NDArray[np.float64], bins: int) -> NDArray[np.float64]:
    """The mean of the rows in each of some stretches of equal length; nothing recalled counts as nothing.

    >>> binned(np.array([[np.nan], [2.0], [4.0], [6.0]]), 2).tolist()
    [[1.0], [5.0]]
    """
    edges = np.linspace(0, len(values), bins + 1).round().astype(int)
    filled = np.nan_to_num(values)
    return np.array([filled[start:end].mean(axis=0) for start, end in pairwise(edges)])
