"""history.csv: one row per step, flushed at once; a number that a step did not have is an empty cell.

The file only grows, and is not held in memory. A checkpoint holds its length and checksums, so saving and resuming take
as long after a million steps as after a thousand; a resume cuts off the rows that came later. A second copy lies with
the checkpoints, in case something else changes the first.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..errors import DataError, InputError, UnreadableError
from ..storage.files import append_to, put_aside, regular_file, write_chunks, writing

NAME = "history.csv"
END = 2**16  # the last bytes of a saved history, which are compared when a run resumes
CHUNK = 2**20


@dataclass(frozen=True)
class Extent:
    """How far a history has got, and how to recognise it."""

    step: int
    columns: list[str]
    size: int
    sum: int
    """CRC-32 of all of it, which needs no second look at earlier rows; compared when the run ends."""
    end: str
    """SHA-256 of its last bytes; compared when the run resumes."""

    @classmethod
    def of(cls, text: bytes) -> Extent:
        """That of a whole history."""
        columns, *rows = csv.reader(io.StringIO(text.decode(), newline=""))
        return cls(int(rows[-1][0]), columns, len(text), zlib.crc32(text), _digest([text[-END:]]))

    def is_held_by(self, path: Path) -> bool:
        """Whether a file begins with this history, judged by its last bytes."""
        try:
            with regular_file(path) as file:
                return _digest(_part(file, max(0, self.size - END), self.size)) == self.end
        except UnreadableError:
            if os.path.lexists(path):  # it may be intact
                raise
            return False
        except DataError:
            return False


class History:
    """The rows of a run, in a file and its second copy if paths are given."""

    def __init__(self, path: Path | None = None, copy: Path | None = None, extent: Extent | None = None) -> None:
        """Begin a history, or take up the one of this extent, which both files hold."""
        self._path, self._copy = path, copy
        self._step, self._columns = (extent.step, extent.columns) if extent else (0, [])
        self._size, self._sum = (extent.size, extent.sum) if extent else (0, 0)
        self._copied = self._size
        self._file: BinaryIO | None = None
        if path is not None:
            with writing(str(path)):
                self._file = append_to(path, self._size)

    @classmethod
    def resumed(cls, path: Path, copy: Path, extent: Extent, told: Callable[[str], None]) -> History:
        """The history of this extent. If it was changed it is copied back, or its rows begin anew."""
        intact = [place for place in (path, copy) if extent.is_held_by(place)]
        if not intact:
            told(f"{path} was changed or removed, so its rows begin where the run resumes{put_aside(path)}")
            return cls(path, copy)
        for place in (path, copy):
            if place not in intact:
                with writing(str(place)), regular_file(intact[0]) as file:
                    write_chunks(place, _part(file, 0, extent.size))
        if path not in intact:
            told(f"{path} was changed or removed, and was restored from a copy")
        return cls(path, copy, extent)

    def add(self, row: Mapping[str, float]) -> None:
        """Write one step."""
        if self._columns and row.keys() != set(self._columns):
            raise InputError(
                f"step {row['step']} has the numbers {', '.join(row):.200} and earlier ones had "
                f"{', '.join(self._columns):.200}; expected the same names at every step"
            )
        lines = io.StringIO()
        writer = csv.DictWriter(lines, fieldnames=self._columns or list(row), lineterminator="\n")
        if not self._columns:
            self._columns = list(row)
            writer.writeheader()
        writer.writerow({name: "" if math.isnan(value) else value for name, value in row.items()})
        content = lines.getvalue().encode()
        self._step = int(row["step"])
        self._size, self._sum = self._size + len(content), zlib.crc32(content, self._sum)
        if self._file is not None:
            with self._writing() as file:
                file.write(content)
                file.flush()

    def saved(self) -> Extent:
        """How far it has got, once that is on disk in both files."""
        assert self._copy is not None
        with self._writing() as file:
            os.fsync(file.fileno())
            end = _digest(_part(file, max(0, self._size - END), self._size))
            with writing(str(self._copy)), append_to(self._copy, self._copied) as copy:
                copy.writelines(_part(file, self._copied, self._size))
                copy.flush()
                os.fsync(copy.fileno())
        self._copied = self._size
        return Extent(self._step, self._columns, self._size, self._sum, end)

    def finish(self, told: Callable[[str], None]) -> None:
        """See that all of the file is on disk, and as it was written."""
        if self._file is None:
            return
        with self._writing() as file:
            os.fsync(file.fileno())
            found = 0
            for chunk in _part(file, 0, os.fstat(file.fileno()).st_size):
                found = zlib.crc32(chunk, found)
        if found != self._sum:
            told(f"{self._path} was changed by something else during the run, so not all of its rows are the run's")

    def __enter__(self) -> History:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            with suppress(OSError):  # what could not be flushed was reported when it was written
                self._file.close()

    @contextmanager
    def _writing(self) -> Iterator[BinaryIO]:
        assert self._file is not None
        assert self._path is not None
        with writing(str(self._path)):
            yield self._file


def _part(file: BinaryIO, start: int, stop: int) -> Iterator[bytes]:
    """These bytes of a file, a chunk at a time; fewer if it ends before."""
    while start < stop and (chunk := os.pread(file.fileno(), min(CHUNK, stop - start), start)):
        yield chunk
        start += len(chunk)


def _digest(chunks: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()
