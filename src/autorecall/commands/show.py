"""`autorecall show`: runs collected into one table, next to the paper's figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from ..errors import ConfigError, DataError
from .row_formats import Format, print_rows
from .rows import gather, grouped
from .words import call


def main(arguments: list[str]) -> None:
    """Parse, gather, print."""
    call(_show, "autorecall show", arguments)


def _show(
    directory: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")],
    markdown: bool = False,
    latex: bool = False,
    csv: bool = False,
    json: bool = False,
) -> None:
    """Collect all runs under a folder into one table, next to the paper's figures.

    Figures are mean ± standard deviation over seeds. Runs whose settings differ from their preset get their own
    rows, without a published figure. On a narrow terminal the last columns are left out; the other formats have all.

    Args:
        directory: The folder to search.
        markdown: Print the table as Markdown.
        latex: Print the table for a LaTeX document, with booktabs.
        csv: Print the table as CSV, every figure in full and deviations in columns of their own.
        json: Print the rows as JSON, every figure in full.
    """
    asked: dict[Format, bool] = {"markdown": markdown, "latex": latex, "csv": csv, "json": json}
    chosen = [form for form, is_asked in asked.items() if is_asked]
    if len(chosen) > 1:
        raise ConfigError(f"--{chosen[0]} and --{chosen[1]} are given; expected one format at a time")
    runs = gather(directory)
    if not runs:
        raise DataError(f"there is no finished run under {directory}; make one with `autorecall run --out {directory}`")
    print_rows(grouped(runs), chosen[0] if chosen else "terminal")
