"""history.csv: one row per step, flushed at once; a number that a step did not have is an empty cell."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from ..errors import WriteError
from ..storage.files import write_text


class History:
    """The rows of a run, in memory and, if a path is given, on disk; `text` holds those of its earlier part."""

    def __init__(self, path: Path | None = None, text: str = "") -> None:
        self._path, self._lines = path, [text] if text else []
        rows = list(csv.reader(io.StringIO(text, newline="")))
        self._columns = rows[0] if rows else []
        self.rows = max(0, len(rows) - 1)
        self._file: TextIO | None = None
        if path is not None:
            with self._disk():
                if text:
                    write_text(path, text)  # steps after the last checkpoint are learned again
                self._file = path.open("a" if text else "w", encoding="utf-8", newline="")

    @property
    def text(self) -> str:
        """All rows so far, as in the file."""
        return "".join(self._lines)

    def add(self, row: Mapping[str, float]) -> None:
        """Write one step."""
        lines = io.StringIO()
        writer = csv.DictWriter(lines, fieldnames=self._columns or list(row), lineterminator="\n")
        if not self._columns:
            self._columns = list(row)
            writer.writeheader()
        writer.writerow({name: "" if math.isnan(value) else value for name, value in row.items()})
        self._lines.append(lines.getvalue())
        self.rows += 1
        if self._file is not None:
            with self._disk():
                self._file.write(lines.getvalue())
                self._file.flush()

    def sync(self) -> None:
        """Make sure that the file is on disk."""
        if self._file is not None:
            with self._disk():
                os.fsync(self._file.fileno())

    def __enter__(self) -> History:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            with suppress(OSError):  # what could not be flushed was reported when it was written
                self._file.close()

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise WriteError(
                f"cannot write {self._path}: {error.strerror}; check the folder and the free space"
            ) from error
