"""Pictures of a run and of the benchmark."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from numpy.typing import NDArray
from torch import Tensor

from ..recall.batch import Recalled
from ..runs.folder import CURVES
from ..runs.result import Result
from ..storage.files import write_bytes
from .drawing import colours, draw_tasks, new_figure, shade_windows, tidy
from .histories import points_of, read_means
from .measure import Timing
from .text import printable

COLUMNS = 10
CURVE_POINTS = 500


@rc_context({"text.parse_math": False, "text.usetex": False})  # a class name is neither a formula nor TeX
def draw_recalled(path: Path, x: Tensor, recalled: Recalled, targets: Tensor, classes: Sequence[str]) -> None:
    """Real images above what they became, with the class that they teach most below."""
    columns = _distinct(recalled)
    labels = targets.argmax(1).tolist()
    figure = new_figure(max(len(columns), 3), 2.7)
    axes = figure.subplots(2, len(columns), squeeze=False)
    for column, index in enumerate(columns):
        origin = None if recalled.origins is None else int(recalled.origins[index])
        above = np.zeros((1, 1)) if origin is None else pixels(x[origin])
        for ax, shown in zip(axes[:, column], (above, pixels(recalled.images[index])), strict=True):
            ax.imshow(shown, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            ax.set_xticks([])
            ax.set_yticks([])
        name = printable(classes[labels[index]])
        axes[1, column].set_xlabel(name if len(name) <= 12 else name[:11] + "…", fontsize=9)
    axes[0, 0].set_ylabel("real" if recalled.origins is not None else "(noise)", fontsize=9)
    axes[1, 0].set_ylabel("recalled", fontsize=9)
    _save(figure, path)


@rc_context({"text.parse_math": False, "text.usetex": False})  # nor is the name of a preset
def draw_curves(folder: Path, result: Result) -> None:
    """The accuracy of each task over training and the losses below, from a run's result and history."""
    means = read_means(folder, result.steps, CURVE_POINTS)
    losses = {name: values for name, values in means.columns.items() if name.endswith("loss")}
    figure = new_figure(7.0, 4.6 if losses else 2.6)
    above, *below = figure.subplots(2 if losses else 1, 1, squeeze=False, sharex=True)[:, 0]
    points = points_of(result, means)
    if points:
        accuracies = np.array([point.accuracies for point in points])
        draw_tasks(above, [point.step for point in points], accuracies, means.task_ends)
    above.set_ylabel("accuracy in %")
    above.set_title(f"{printable(result.preset)[:60]}, seed {result.seed}: {result.accuracy:.1f} %", fontsize=10)
    for ax in below:
        for (name, values), colour in zip(losses.items(), colours(len(losses)), strict=True):
            ax.plot(means.ends, values, color=colour, linewidth=1, label=name.replace("_", " "))
        shade_windows(ax, means.task_ends)
        tidy(ax)
        ax.grid(axis="x", visible=False)
        ax.set_ylabel("loss")
        ax.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.axes[-1].set_xlabel("step")
    _save(figure, folder / CURVES)


def draw_growth(path: Path, curves: dict[str, dict[int, Timing]]) -> None:
    """Seconds per iteration against each size, on logarithmic axes: a straight line of slope 1 is linear growth."""
    figure = new_figure(2.6 * len(curves), 2.6)
    for ax, (name, curve) in zip(
        figure.subplots(1, len(curves), sharey=True, squeeze=False)[0], curves.items(), strict=True
    ):
        sizes, seconds = list(curve), [timing.seconds for timing in curve.values()]
        spread = [[t.seconds - t.low for t in curve.values()], [t.high - t.seconds for t in curve.values()]]
        ax.errorbar(sizes, seconds, yerr=spread, marker="o", markersize=3, capsize=2)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xticks(sizes, [str(size) for size in sizes])
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.minorticks_off()
        ax.set_xlabel(name)
        ax.grid(alpha=0.3)
    figure.axes[0].set_ylabel("seconds per iteration")
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    drawn = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a class name may be in a script that the font lacks
        figure.savefig(drawn, format="png")
    write_bytes(path, drawn.getvalue())


def _distinct(recalled: Recalled) -> list[int]:
    """One recalled image per real one it started from; copies of one image stay alike."""
    if recalled.origins is None:
        return list(range(min(COLUMNS, len(recalled.images))))
    first: dict[int, int] = {}
    for index, origin in enumerate(recalled.origins.tolist()):
        first.setdefault(origin, index)
    return [first[origin] for origin in sorted(first)][:COLUMNS]


def pixels(image: Tensor) -> NDArray[np.float32]:
    """Height × width (× 3), clipped to [0, 1]: recalled pixels may lie outside."""
    array: NDArray[np.float32] = image.detach().cpu().float().numpy()
    if array.ndim == 3 and array.shape[0] == 3:
        array = array.transpose(1, 2, 0)
    elif array.ndim == 3 and array.shape[0] == 1:
        array = array[0]
    else:
        array = array.reshape(1, -1)
    return np.clip(array, 0, 1)
