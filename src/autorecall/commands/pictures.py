"""Pictures of a run and of the benchmark."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from ..recall.batch import Recalled
from ..storage.files import write_bytes
from .measure import Timing
from .text import printable

COLUMNS = 10


@rc_context({"text.parse_math": False, "text.usetex": False})  # a class name is neither a formula nor TeX
def draw_recalled(path: Path, x: Tensor, recalled: Recalled, targets: Tensor, classes: Sequence[str]) -> None:
    """Real images above what they became, with the class that they teach most below."""
    columns = _distinct(recalled)
    labels = targets.argmax(1).tolist()
    figure = _figure(max(len(columns), 3), 2.7)
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


def draw_growth(path: Path, curves: dict[str, dict[int, Timing]]) -> None:
    """Seconds per iteration against each size, on logarithmic axes: a straight line of slope 1 is linear growth."""
    figure = _figure(2.6 * len(curves), 2.6)
    for ax, (name, curve) in zip(
        figure.subplots(1, len(curves), sharey=True, squeeze=False)[0], curves.items(), strict=True
    ):
        sizes, seconds = list(curve), [timing.seconds for timing in curve.values()]
        spread = [[t.seconds - t.low for t in curve.values()], [t.high - t.seconds for t in curve.values()]]
        ax.errorbar(sizes, seconds, yerr=spread, marker="o", markersize=3, capsize=2)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xticks(sizes, [str(size) for size in sizes])
        ax.minorticks_off()
        ax.set_xlabel(name)
        ax.grid(alpha=0.3)
    figure.axes[0].set_ylabel("seconds per iteration")
    _save(figure, path)


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


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
