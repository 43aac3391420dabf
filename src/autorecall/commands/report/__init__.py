"""`autorecall report`: a run, several runs or a whole tree of results as one HTML file that needs nothing else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import tyro

from ...errors import ConfigError, DataError
from ...storage.files import kind_of, regular_file, write_text
from ..output import quiet_console
from ..rows import Run, gather, grouped, leave_out
from ..text import printable
from ..words import call

NAME = "report.html"


def main(arguments: list[str]) -> None:
    """Parse, gather, write."""
    call(_report, "autorecall report", arguments)


def _report(
    directories: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="DIR")],
    out: Path | None = None,
) -> None:
    """Make one HTML file of all runs under a folder, which opens from disk and loads nothing from elsewhere.

    A single run is shown with its accuracy after each task, curves, recalled classes, settings and cost. Several are
    compared in a table that can be sorted, next to the paper's figures, and by what a byte of memory buys; each row
    opens its runs.

    Args:
        directories: The folder of a run, or folders to search.
        out: The file to write; if unset, report.html in the folder, or here if there are several.
    """
    if not directories:
        raise ConfigError("no folder is given; expected one that `autorecall run --out` wrote, such as runs")
    target = out or (directories[0] / NAME if len(directories) == 1 else Path(NAME))
    left_out: list[str] = []

    def told(sentence: str) -> None:
        left_out.append(sentence)
        leave_out(sentence)

    runs: list[Run] = []
    for directory in directories:
        runs += gather(directory, told)
    if not runs:
        where = " or ".join(map(str, directories))
        raise DataError(
            f"there is no finished run under {where}; make one with `autorecall run --out {directories[0]}`"
        )
    _refuse_other(target)
    from .charts import byte_words
    from .page import page_of

    rows = grouped(runs, told)
    page = page_of(rows, directories, left_out)
    write_text(target, page)
    size = byte_words(len(page.encode()))
    count = sum(len(row.runs) for row in rows)
    said = f"wrote {printable(os.fspath(target))} ({size}): {count:,} run{'s' * (count > 1)}"
    quiet_console().print(said, soft_wrap=True)


def _refuse_other(target: Path) -> None:
    """Only a report is replaced: anything else may be somebody's work."""
    from .page import MARK

    if not target.parent.is_dir():
        raise ConfigError(f"{target.parent} is not a folder; choose another --out")
    if not os.path.lexists(target):
        return
    try:
        with regular_file(target) as file:
            if MARK.encode() in file.read(1000):
                return
    except DataError as error:
        raise ConfigError(
            f"{target} is {kind_of(target.lstat())} that cannot be replaced; choose another --out"
        ) from error
    raise ConfigError(f"{target} is not a report of autorecall and is left alone; choose another --out")
