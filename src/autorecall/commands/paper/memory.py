"""What a byte buys: accuracy against everything that a method keeps, for every method of the library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from .. import drawing
from ..report.scatter import Dot, Scatter, scatter
from ..rows import Run
from ..table import Figure
from .figures import DATASETS
from .study import Place, Row, Study
from .tables import MainTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEWEST = 3  # methods that make a plot
MARKS = {  # what is kept: its mark, colour and name
    "images": ("s", drawing.COLOURS[1], "keeps images"),
    "numbers": ("o", drawing.COLOURS[0], "keeps networks, means or covariances"),
    "nothing": ("D", "0.45", "keeps nothing"),
}


class Memory(Study):
    """Accuracy against bytes."""

    name = "memory"
    what = "accuracy against the bytes that every method keeps besides its network, for each dataset"
    _TABLES: ClassVar = tuple(MainTable(dataset, title, 0) for dataset, title in DATASETS.items())

    def rows(self, seeds: int, fraction: float) -> list[Row]:
        """Those of the main tables."""
        return [row for table in self._TABLES for row in table.rows(seeds, fraction)]

    def write(self, place: Place, seeds: int, fraction: float) -> list[Path]:
        """One plot for each dataset that has several methods."""
        plots = []
        for table in self._TABLES:
            found = [(row, place.runs(row)) for row in table.rows(seeds, fraction)]
            dots = [_dot(row, runs) for row, runs in found if runs]
            if len(dots) >= FEWEST and any(dot.bytes for dot in dots):
                plots.append(scatter(DATASETS[table.name], dots, folded=False))
        if not plots:
            return []
        width, height = plots[0].frame.width, plots[0].frame.height
        figure = drawing.new_figure(width / 100, height / 100 * len(plots))
        for ax, plot in zip(figure.subplots(len(plots), 1, squeeze=False)[:, 0], plots, strict=True):
            _draw(ax, plot)
        return drawing.save(figure, place.stem(self.name, fraction))


def _dot(row: Row, runs: Sequence[Run]) -> Dot:
    accuracy, memory = Figure.over([run.result.accuracy for run in runs]), runs[0].result.memory
    assert accuracy is not None
    kind = "images" if memory.images else "numbers" if memory.numbers else "nothing"
    name = row.preset.split("/")[1]
    return Dot(name, accuracy.value, accuracy.spread or 0.0, memory.bytes, kind, True, None, name, "")


def _draw(ax: Axes, plot: Scatter) -> None:
    """The same places as on the page of a report, whose lengths are hundredths of an inch."""
    frame = plot.frame
    for dot in plot.dots:
        mark, colour, _ = MARKS[dot.kind]
        ax.plot([dot.x, dot.x], [dot.low, dot.high], color=colour, linewidth=1)
        ax.plot([dot.x], [dot.y], mark, color=colour, markersize=6)
        if dot.label is not None:
            side = {"start": "left", "middle": "center", "end": "right"}[dot.anchor]
            ax.text(dot.label.at, dot.label_y, dot.label.label, fontsize=8.5, horizontalalignment=side)
    for kind in plot.kinds:
        mark, colour, words = MARKS[kind]
        ax.plot([], [], mark, color=colour, markersize=6, label=words)
    ticks = [(tick.at, tick.label) for tick in plot.x_ticks]
    if plot.nothing is not None:
        ticks.insert(0, (plot.nothing, "nothing"))
    ax.set_xticks([at for at, _ in ticks], [label for _, label in ticks])
    ax.set_yticks([tick.at for tick in plot.y_ticks], [tick.label for tick in plot.y_ticks])
    ax.set_xlim(frame.left, frame.width - frame.right)
    ax.set_ylim(frame.floor, frame.top - 6)
    drawing.tidy(ax)
    ax.set_title(plot.title, fontsize=10)
    ax.set_xlabel("bytes kept besides the network")
    ax.set_ylabel("accuracy in %")
    ax.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, frameon=False)
