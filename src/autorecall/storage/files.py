"""Files: written aside, flushed and renamed; only regular ones are read, and without ever waiting for them."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ..errors import AutorecallError, ConfigError, DataError, UnreadableError, WriteError

LARGEST_JSON = 64 * 2**20  # no result has more (runs/run.py); anything larger is not ours
_OURS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # where there are pipes to wait for
NO_LINK = getattr(os, "O_NOFOLLOW", 0)
NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF, errno.EACCES, errno.EPERM)


@contextmanager
def writing(place: str) -> Iterator[None]:
    """An error of the system inside becomes one sentence about this place."""
    try:
        yield
    except OSError as error:
        raise WriteError(f"cannot write {place}: {error.strerror}; check the folder and the free space") from error


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically: after a crash or a power cut, either the old or the new file is there."""
    write_chunks(path, [content])


def place_to_write(path: Path) -> Path:
    """Where a file goes that a person named: a link is followed, and anything but a file or nothing is refused."""
    found = None
    try:
        with suppress(FileNotFoundError):
            found = path.stat()
        place = path.resolve() if path.is_symlink() else path
    except (OSError, ValueError) as error:  # such as a link to itself
        said = getattr(error, "strerror", error)
        raise ConfigError(f"cannot write {path}: {said}; give the name of a file") from error
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{path} is {kind_of(found)}; give the name of a file to write")
    if not place.parent.is_dir():
        raise ConfigError(f"cannot write {path}: there is no folder {place.parent}; make it, or give another name")
    return place


def write_chunks(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """The same for content that comes in parts."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with os.fdopen(_new(aside), "wb") as file:
            file.writelines(chunks)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise WriteError(f"cannot write {path}: {error.strerror}; check the folder and the free space") from error
    finally:  # leaves nothing after an interrupt either
        with suppress(OSError):
            aside.unlink()


def _new(path: Path) -> int:
    """Open a file that did not exist; one left by an earlier process of this number is removed, not written to."""
    for _ in range(2):
        try:
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OURS, 0o666)
        except FileExistsError:
            path.unlink()
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically. Bytes of names that are no UTF-8 are written as JSON and Python would: \\udcff."""
    write_bytes(path, text.encode(errors="backslashreplace"))


def write_json(path: Path, value: object) -> None:
    """Write a JSON file atomically; NaN is not valid JSON and is an error."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path, links: bool = False) -> dict[str, object]:
    """Read a JSON object; a file that is missing, damaged or not an object is a DataError. `links` are followed."""
    try:
        with regular_file(path, links=links) as file:
            content = file.read(LARGEST_JSON + 1)
        if len(content) > LARGEST_JSON:
            raise DataError(f"{path} is larger than {LARGEST_JSON // 2**20} MiB; that is not a file of autorecall")
        value = json.loads(content.decode(), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON ({error}); restore it") from error
    if not isinstance(value, dict):
        raise DataError(f"{path} holds a {type(value).__name__}; expected a JSON object")
    return value


@contextmanager
def regular_file(path: Path, links: bool = False) -> Iterator[BinaryIO]:
    """Open a file to read it; whatever else has that name, such as a pipe that would block, is a DataError."""
    try:
        if "\0" in str(path):
            raise DataError(f"{str(path)!r} has a null character, which no path can have; give another")
        _refuse_irregular(path, (os.stat if links else os.lstat)(path))  # first: to open a device may set it off
        opened = os.open(path, os.O_RDONLY | _NO_WAIT | _OURS | (0 if links else NO_LINK))
        with os.fdopen(opened, "rb") as file:
            _refuse_irregular(path, os.fstat(opened))  # the name may stand for something else by now
            yield file
    except OSError as error:
        raise UnreadableError(f"cannot read {path}: {error.strerror}; check the path") from error


def append_to(path: Path, size: int) -> BinaryIO:
    """Open a file to append to, after cutting it to this size; a new one if there is none."""
    opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | _NO_WAIT | _OURS | NO_LINK, 0o666)
    try:
        _refuse_irregular(path, os.fstat(opened))
        os.ftruncate(opened, size)
        return os.fdopen(opened, "ab")
    except BaseException:
        os.close(opened)
        raise


def _refuse_irregular(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise DataError(f"{path} is {kind_of(found)}, not a regular file; check the path")


def kind_of(found: os.stat_result) -> str:
    """What a name stands for, in words."""
    kinds = {
        stat.S_IFREG: "a file",
        stat.S_IFDIR: "a folder",
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(found.st_mode), "a device")


def _no_number(constant: str) -> float:
    raise ValueError(f"{constant} is no number")


def sync_folder(folder: Path) -> None:
    """Make a rename or a new name in this folder durable, if the system allows it; not every one does."""
    if os.name != "posix":
        return
    try:
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise


def move_aside(folder: Path) -> Path:
    """Rename a folder to the first free name that ends in .old-1, .old-2 and so on, and return it."""
    if folder.name in ("", ".."):
        raise ConfigError(f"cannot move {folder} aside, because it is the folder you are in; give it by its name")
    number = 1
    while (aside := folder.with_name(f"{folder.name}.old-{number}")).exists():
        number += 1
    try:
        folder.rename(aside)
        sync_folder(folder.parent)
    except OSError as error:
        raise AutorecallError(f"cannot move {folder} aside: {error.strerror}; move it yourself") from error
    return aside


def put_aside(path: Path) -> str:
    """If there is such a file, rename it to the first free name that ends in .damaged-1 and so on, and say so."""
    if not os.path.lexists(path):
        return ""
    number = 1
    while os.path.lexists(aside := path.with_name(f"{path.name}.damaged-{number}")):
        number += 1
    try:
        path.rename(aside)
    except OSError as error:
        raise WriteError(f"cannot move {path} aside: {error.strerror}; move it yourself") from error
    return f"; it is {aside.name} now"


def make_folder(path: Path) -> None:
    """Create a folder and its parents, and make sure that files can be written there."""
    try:
        new = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for folder in new:
            sync_folder(folder.parent)
    except OSError as error:
        reason = error.strerror or "it is not a folder"
        raise AutorecallError(f"cannot create the folder {path}: {reason}; choose another") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise AutorecallError(f"cannot write to the folder {path}: permission denied; choose another")
