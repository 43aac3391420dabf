"""How figures look: sizes, colours that colour-blind readers can tell apart, and PNG and PDF files."""

from __future__ import annotations

import io
import operator
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from ..storage.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette, without its yellow, which is too light for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DENSITY = "magma"


def colours(count: int) -> list[str]:
    """A colour for each of several lines; more than seven run through a map from dark to light."""
    if count <= len(COLOURS):
        return list(COLOURS[:count])
    shades = matplotlib.colormaps["viridis"]
    return [matplotlib.colors.to_hex(shades(0.95 * number / (count - 1))) for number in range(count)]


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches."""
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def tidy(ax: Axes) -> None:
    """No more ink than needed."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, linewidth=0.6)


def name_points(ax: Axes, names: Sequence[str], points: Sequence[tuple[float, float]]) -> list[Text]:
    """A name beside each point, if possible where it covers no marker or text; all else must have been drawn."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # only then is it known where things are
    reach = 3 * figure.dpi / 72
    markers = [place for line in ax.get_lines() for place in line.get_transform().transform(line.get_xydata())]
    taken = [Bbox.from_extents(x - reach, y - reach, x + reach, y + reach) for x, y in markers]
    taken += [text.get_window_extent() for text in ax.texts]
    named = list[Text]()
    for name, point in zip(names, points, strict=True):
        tried = list[tuple[int, Text, Bbox]]()
        for height, side in product((-2.5, 3.5, -8.5, 9.5, -14.5), (1, -1)):
            text = ax.annotate(
                name,
                point,
                xytext=(5 * side, height),
                textcoords="offset points",
                horizontalalignment="left" if side > 0 else "right",
                fontsize=7,
            )
            box = text.get_window_extent()
            tried.append((box.count_overlaps(taken), text, box))
        best = min(tried, key=operator.itemgetter(0))
        for other in tried:
            if other is not best:
                other[1].remove()
        named.append(best[1])
        taken.append(best[2])
    return named


def shade_windows(ax: Axes, ends: Sequence[int]) -> None:
    """A line where each task ends and the next begins."""
    for end in ends[:-1]:
        ax.axvline(end, color="0.75", linewidth=0.7, zorder=0)


def draw_tasks(
    ax: Axes, steps: Sequence[int], accuracies: NDArray[np.float64], ends: Sequence[int], legend: bool = True
) -> None:
    """The accuracy of each task over training, points × tasks; `ends` are the last steps of tasks."""
    tasks = accuracies.shape[1]
    for task, colour in enumerate(colours(tasks)):
        ax.plot(steps, accuracies[:, task], color=colour, linewidth=1.6, label=f"task {task + 1}")
    shade_windows(ax, ends)
    ax.set_ylim(-3, 103)
    ax.set_xlim(0, max(ends, default=steps[-1]))
    tidy(ax)
    ax.grid(axis="x", visible=False)
    shown = range(tasks) if tasks <= 7 else (0, tasks // 2, tasks - 1)
    handles = ax.get_lines()
    if legend:
        words = [f"task {task + 1}" for task in shown]
        ax.legend([handles[task] for task in shown], words, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))


def save(figure: Figure, path: Path) -> list[Path]:
    """As PNG for the docs and PDF for a paper; without dates, so the same figure gives the same file."""
    written = []
    for kind, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
        drawn = io.BytesIO()
        with matplotlib.rc_context({"text.parse_math": False}):
            figure.savefig(drawn, format=kind, metadata=metadata)
        target = path.with_name(f"{path.name}.{kind}")
        write_bytes(target, drawn.getvalue())
        written.append(target)
    return written
