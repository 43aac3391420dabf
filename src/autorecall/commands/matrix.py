"""The matrix of accuracies as lines of text: one row per task that was learned, one column per task that was tested."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

from ..config import ARRAYS
from ..data import OWN
from .text import printable

MOST_COLUMNS = 10
WIDTHS = (24, 18, 14, 10)  # of a column with names, the widest that fits
FIRST = len("after task 10")


def is_own(dataset: str) -> bool:
    """Whether these are a user's own data, whose classes mean more by their names than by their numbers."""
    return dataset in (*OWN, ARRAYS)


class Matrix:
    """The lines; with a heading of class names if the data are a user's own and there is space for them."""

    def __init__(self, dataset: str, tasks: Sequence[Sequence[str]], width: int) -> None:
        self._labels: list[str] = []
        if is_own(dataset) and len(tasks) <= MOST_COLUMNS:
            for most in WIDTHS:
                labels = [task_label(classes, most) for classes in tasks]
                if FIRST + sum(2 + max(5, cell_len(label)) for label in labels) <= width:
                    self._labels = labels
                    break

    def heading(self) -> str | None:
        """The classes of each task, if they are named."""
        if not self._labels:
            return None
        return "accuracy in %" + "".join(f"  {_right(label, max(5, cell_len(label)))}" for label in self._labels)

    def row(self, task: int, accuracies: Sequence[float]) -> str:
        """The accuracy on each task after this one, which counts from 1."""
        if self._labels:
            cells = zip(self._labels, accuracies, strict=True)
            return f"after task {task:2}" + "".join(f"  {a:{max(5, cell_len(label))}.1f}" for label, a in cells)
        shown = "  ".join(f"{a:5.1f}" for a in accuracies[:MOST_COLUMNS]) + "  …" * (len(accuracies) > MOST_COLUMNS)
        return f"after task {task:2}   accuracy on each task in %:  {shown}"

    def lines(self, matrix: Sequence[Sequence[float]]) -> list[str]:
        """All of it, or the last row if there are many."""
        first = len(matrix) if len(matrix) > MOST_COLUMNS else 1
        rows = [self.row(task, matrix[task - 1]) for task in range(first, len(matrix) + 1)]
        heading = self.heading()
        return rows if heading is None else [heading, *rows]


def task_label(classes: Sequence[str], most: int) -> str:
    """The names of a task's classes, as many as fit into so many cells of a terminal, and how many more there are.

    >>> task_label(["cat", "dog", "bird"], 20), task_label(["cat", "dog", "bird"], 10)
    ('cat, dog, bird', 'cat +2')
    """
    names = [printable(name) for name in classes]
    for count in range(len(names), 0, -1):
        more = f" +{len(names) - count}" * (count < len(names))
        label = ", ".join(names[:count])
        if cell_len(label + more) <= most:
            return label + more
    return set_cell_size(names[0], most - 1 - len(more)).rstrip() + "…" + more


def _right(text: str, width: int) -> str:
    return " " * (width - cell_len(text)) + text
