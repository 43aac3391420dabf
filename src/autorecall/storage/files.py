"""Atomic files: written aside, flushed, renamed."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from pathlib import Path

from ..errors import AutorecallError, ConfigError, DataError, WriteError

LARGEST_JSON = 16 * 2**20  # our own files stay far below; anything larger is not ours
NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF, errno.EACCES, errno.EPERM)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically: after a crash or a power cut, either the old or the new file is there."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise WriteError(f"cannot write {path}: {error.strerror}; check the folder and the free space") from error
    finally:  # leaves nothing after an interrupt either
        with suppress(OSError):
            aside.unlink()


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: object) -> None:
    """Write a JSON file atomically; NaN is not valid JSON and is an error."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, object]:
    """Read a JSON object; a file that is missing, damaged or not an object is a DataError."""
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise DataError(f"{path} is larger than {LARGEST_JSON // 2**20} MiB; that is not a file of autorecall")
        value = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; check the path") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON ({error}); restore it") from error
    if not isinstance(value, dict):
        raise DataError(f"{path} holds a {type(value).__name__}; expected a JSON object")
    return value


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
