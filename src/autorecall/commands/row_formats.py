"""Rows of runs as text: for a terminal, and as Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from .rows import Row, notes_on, short
from .table import Cell, Figure, Table
from .text import markdown as in_markdown
from .text import printable

HEADER = ("run", "seeds", "accuracy", "paper", "forgetting", "paper", "images", "MB", "parameters", "MB", "seconds")
USUAL_WIDTH = 100  # columns, if nobody says how many there are
RUN_WIDTH = 36  # of the column of names, before others have to go
GAP = 2  # between columns

Format = Literal["terminal", "markdown", "latex", "csv", "json"]
Measure = Literal["accuracy", "forgetting"]


def print_rows(rows: Sequence[Row], form: Format = "terminal") -> None:
    """All of them, and what their figures mean."""
    printers: dict[Format, Callable[[Sequence[Row]], None]] = {
        "terminal": _print_for_terminal,
        "markdown": _print_markdown,
        "latex": lambda rows: print(_table(rows, paper_figure).latex(), end=""),
        "csv": lambda rows: print(_table(rows, _published).csv(), end=""),
        "json": lambda rows: print(json.dumps([as_json(row) for row in rows], indent=2)),
    }
    printers[form](rows)


def as_json(row: Row) -> dict[str, object]:
    """A row as plain values, every figure in full."""
    memory, published = row.memory, row.published
    return {
        "run": row.name,
        "preset": row.preset,
        "changed": dict(row.changed),
        "seeds": sorted(row.by_seed),
        "accuracy": _figure(row.accuracy),
        "forgetting": _figure(row.forgetting),
        "published": None
        if published is None
        else {
            "accuracy": {"mean": published.accuracy, "spread": published.accuracy_spread},
            "forgetting": None
            if published.forgetting is None
            else {"mean": published.forgetting, "spread": published.forgetting_spread},
            "spread": published.spread,
        },
        "memory": {
            "images": memory.images,
            "image_bytes": round(1e6 * memory.image_mb),
            "parameters": memory.parameters,
            "parameter_bytes": round(1e6 * memory.parameter_mb),
            "statistics": memory.statistics,
            "statistic_bytes": round(1e6 * memory.statistic_mb),
            "bytes": memory.bytes,
        },
        "seconds": row.seconds,
        "folders": [os.fspath(row.by_seed[seed].folder) for seed in sorted(row.by_seed)],
    }


def _figure(figure: Figure | None) -> dict[str, float | None] | None:
    return None if figure is None else {"mean": figure.value, "deviation": figure.spread}


def _published(row: Row, what: Measure) -> Figure | None:
    value = getattr(row.published, what, None)
    return None if value is None else Figure(value, getattr(row.published, f"{what}_spread"))


def paper_figure(row: Row, what: Measure) -> str | None:
    """A figure as the paper prints it, if it does."""
    value = getattr(row.published, what, None)
    return None if value is None else f"{value} ± {getattr(row.published, f'{what}_spread')}"


_TABLE_HEADER = (
    *("run", "changed", "seeds", "accuracy", "published accuracy", "forgetting", "published forgetting"),
    *("images", "image MB", "numbers", "number MB", "seconds"),
)


def _table(rows: Sequence[Row], published: Callable[[Row, Measure], Cell]) -> Table:
    """For a paper or a program, which want no word where there is no figure."""
    lines: list[list[Cell]] = [
        [
            printable(row.preset),
            printable(" ".join(row.changed_briefly)),
            len(row.runs),
            row.accuracy,
            published(row, "accuracy"),
            row.forgetting,
            published(row, "forgetting"),
            row.memory.images,
            f"{row.memory.image_mb:.6g}",
            row.memory.numbers,
            f"{row.memory.number_mb:.6g}",
            f"{row.seconds:.1f}",
        ]
        for row in rows
    ]
    return Table("Runs", _TABLE_HEADER, lines, notes_on(rows, printable))


def _print_markdown(rows: Sequence[Row]) -> None:
    print("| " + " | ".join(HEADER) + " |\n|" + "---|" * len(HEADER))
    for row in rows:
        print("| " + " | ".join(map(in_markdown, _cells(row))) + " |")
    print("\n" + "\n".join(notes_on(rows, in_markdown)))


def _cells(row: Row) -> tuple[str, ...]:
    memory = row.memory
    none = "not in the paper" if row.in_presets and row.published is None else "-"
    return (
        short(row.name),
        str(len(row.runs)),
        str(row.accuracy),
        paper_figure(row, "accuracy") or none,
        str(row.forgetting or "-"),
        paper_figure(row, "forgetting") or none,
        f"{memory.images:,}",
        f"{memory.image_mb:.2f}",
        f"{memory.numbers:,}",
        f"{memory.number_mb:.2f}",
        f"{row.seconds:.1f}",
    )


@dataclass(frozen=True)
class _Column:
    name: str
    cell: Callable[[Row], str]

    def cells(self, rows: Sequence[Row]) -> list[str]:
        return [printable(self.cell(row)) for row in rows]


# Beside the name of the run; the most useful come first, and the last are left out where there is no space for them.
_COLUMNS = (
    _Column("accuracy", lambda row: str(row.accuracy)),
    _Column("paper", lambda row: paper_figure(row, "accuracy") or "-"),
    _Column("forgetting", lambda row: str(row.forgetting or "-")),
    _Column("paper", lambda row: paper_figure(row, "forgetting") or "-"),
    _Column("kept MB", lambda row: f"{row.memory.bytes / 1e6:.2f}"),
    _Column("seeds", lambda row: str(len(row.runs))),
    _Column("seconds", lambda row: f"{row.seconds:.1f}"),
    _Column("images", lambda row: f"{row.memory.images:,}"),
    _Column("parameters", lambda row: f"{row.memory.numbers:,}"),
)


def _print_for_terminal(rows: Sequence[Row]) -> None:
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = USUAL_WIDTH
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, GAP - 1, 0, 0))
    table.add_column("run", overflow="fold")
    columns = _fitting(rows, console.width)
    for name, _ in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for number, row in enumerate(rows):
        table.add_row(_named(row), *(cells[number] for _, cells in columns))
    console.print(table)
    console.print()
    for note in notes_on(rows, printable):
        console.print(note)


def _named(row: Row) -> RenderableType:
    """The preset, and below it what differs."""
    preset = Text(printable(row.preset))
    changed = Text(printable(", ".join(row.changed_briefly)))
    return Group(preset, Padding(changed, (0, 0, 0, 2))) if row.changed else preset


def _fitting(rows: Sequence[Row], width: int) -> list[tuple[str, list[str]]]:
    """The columns that fit beside the names, with their cells; accuracy in any case."""
    words = [word for row in rows for word in (row.preset, *(f"  {setting}," for setting in row.changed_briefly))]
    left = width - min(RUN_WIDTH, max(cell_len(printable(word)) for word in words))
    found: list[tuple[str, list[str]]] = []
    for column in _COLUMNS:
        cells = column.cells(rows)
        if column.name == "paper" and set(cells) == {"-"}:
            continue
        left -= GAP + max(map(cell_len, (column.name, *cells)))
        if found and left < 0:
            break
        found.append((column.name, cells))
    return found
