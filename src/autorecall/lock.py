"""One writer a run folder: a lock that ends with its process, however that ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import AutorecallError, WriteError
from .files import make_folder, move_aside

if sys.platform != "win32":  # where there is no flock, and nobody is kept out
    import fcntl

NAME = ".lock"


class Lock:
    """Holds a folder for this process. The system lets go of it when the process dies, so no lock is ever stale."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / NAME
        try:
            self._file = self._taken()
            try:
                # For people, and for the sentence that others get; what counts is the lock of the system.
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)
            except OSError:
                self.release()
                raise
        except OSError as error:
            reason = f"{error.strerror}; check the folder and the free space"
            raise WriteError(f"cannot write {self._path}: {reason}") from error

    def check(self) -> None:
        """Refuse to go on in a folder that was removed, moved or replaced since."""
        if not self._is_at_its_place(self._file):
            raise WriteError(f"cannot write to {self._folder}: it was removed or moved; check the folder")

    def release(self) -> None:
        """Let go."""
        with suppress(OSError):
            if self._is_at_its_place(self._file):
                self._path.unlink()  # while it is held: whoever has opened it meanwhile notices that it is gone
        os.close(self._file)

    def _taken(self) -> int:
        while True:
            make_folder(self._folder)
            try:
                file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except FileNotFoundError:
                continue  # moved aside by another, between the two lines above
            try:
                if sys.platform != "win32":
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_at_its_place(file):
                    return file
            except BlockingIOError as error:
                owner = os.pread(file, 20, 0).decode(errors="replace").strip()
                os.close(file)
                raise AutorecallError(
                    f"{self._folder} is in use by process {owner or '(starting)'}; wait for it or choose another folder"
                ) from error
            os.close(file)  # deleted by its last owner between our opening and our locking: once more

    def _is_at_its_place(self, file: int) -> bool:
        try:
            there = self._path.stat()
        except OSError:
            return False
        mine = os.fstat(file)
        return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


@contextmanager
def owned(folder: Path, fresh: bool = False) -> Iterator[Lock]:
    """The folder for this process alone; `fresh` moves what it holds aside first."""
    lock = Lock(folder)
    try:
        while fresh and any(path.name != NAME for path in folder.iterdir()):
            (move_aside(folder) / NAME).unlink()
            # If another was faster, this one is refused here as anywhere else, or finds what that one left.
            old, lock = lock, Lock(folder)
            old.release()
        for left in (*folder.glob(".*.tmp"), *folder.glob("*/.*.tmp")):  # of a process that was killed while writing
            left.unlink(missing_ok=True)
        yield lock
    finally:
        lock.release()
