"""`autorecall show`: runs collected into one table, next to the paper's figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from ..errors import DataError
from .rows import gather, print_rows
from .words import call


def main(arguments: list[str]) -> None:
    """Parse, gather, print."""
    call(_show, "autorecall show", arguments)


def _show(
    directory: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")], markdown: bool = False
) -> None:
    """Collect all runs under a folder into one table, next to the paper's figures.

    Figures are mean ± standard deviation over seeds. Runs whose settings differ from their preset get their own
    rows, without a published figure.

    Args:
        directory: The folder to search.
        markdown: Print the table as Markdown.
    """
    runs = gather(directory)
    if not runs:
        raise DataError(f"there is no finished run under {directory}; make one with `autorecall run --out {directory}`")
    print_rows(runs, markdown)
