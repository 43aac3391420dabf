"""One writer per run folder: a lock that ends with its process, however it ends."""

from __future__ import annotations

import errno
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import AutorecallError, ConfigError, InUseError, WriteError
from ..storage.files import make_folder, move_aside

if sys.platform != "win32":
    import fcntl

NAME = ".lock"
SUPPORTED = sys.platform != "win32"  # which has no flock
NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
MOST_TRIES = 100  # each costs another process a move of the folder; this many in a row are no coincidence


class Lock:
    """Holds a folder for this process. The system releases it when the process dies, so no lock is ever stale."""

    def __init__(self, folder: Path) -> None:
        if not SUPPORTED:
            raise ConfigError("run folders need Linux or macOS, which can lock them; on Windows, use WSL or no folder")
        self._folder, self._path = folder, folder / NAME
        self.excludes = True  # others; some file systems cannot
        try:
            self._file = self._taken()
            try:
                # For people, and for the message that others get; what counts is the system's lock.
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, f"{os.getpid()} on {platform.node() or 'this machine'}\n".encode(), 0)
            except OSError:
                self.release()
                raise
        except OSError as error:
            reason = f"{error.strerror}; check the folder and the free space"
            raise WriteError(f"cannot write {self._path}: {reason}") from error

    def check(self) -> None:
        """Refuse to continue in a folder that has been removed, moved or replaced."""
        if not self.is_held():
            raise WriteError(f"cannot write to {self._folder}: it was removed or moved; check the folder")

    def is_held(self) -> bool:
        """Whether the folder is still in its place and held by this process."""
        return self._is_at_its_place(self._file)

    def release(self) -> None:
        """Release the folder."""
        with suppress(OSError):
            if self._is_at_its_place(self._file):
                self._path.unlink()  # while it is held, so that a process that has it open notices
        os.close(self._file)

    def _taken(self) -> int:
        for _ in range(MOST_TRIES):
            make_folder(self._folder)
            try:
                # Not through a link, which could overwrite somebody else's file.
                file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            except FileNotFoundError:
                continue  # moved aside by another process between the two lines above
            try:
                self._lock(file)
                if self._is_at_its_place(file):
                    return file
            except BlockingIOError as error:
                owner = os.pread(file, 300, 0).decode(errors="replace").strip()
                os.close(file)
                raise InUseError(
                    f"{self._folder} is in use by process {owner or '(starting)'}; wait for it or choose another folder"
                ) from error
            except BaseException:
                os.close(file)
                raise
            os.close(file)  # deleted by its last owner between our opening and locking it: try again
        raise AutorecallError(f"{self._folder} keeps being moved away by another process; choose another folder")

    def _lock(self, file: int) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            self.excludes = False

    def _is_at_its_place(self, file: int) -> bool:
        try:
            there = self._path.lstat()
        except OSError:
            return False
        mine = os.fstat(file)
        return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


@contextmanager
def locked(folder: Path, fresh: bool = False, told: Callable[[str], None] = lambda _: None) -> Iterator[Lock]:
    """Hold the folder; `told` hears if others cannot be kept out; `fresh` first moves its content aside."""
    lock = Lock(folder)
    try:
        while fresh and any(path.name != NAME for path in folder.iterdir()):
            (move_aside(folder) / NAME).unlink()
            # If another process was faster, this one is refused as usual, or finds what that one left.
            old, lock = lock, Lock(folder)
            old.release()
        if not lock.excludes:
            told(f"the file system of {folder} has no locks, so do not start a second run there at the same time")
        yield lock
    finally:
        lock.release()
