"""Where data is looked for: the folder that was given, else AUTORECALL_DATA, and then the cache."""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pooch

from autorecall.errors import DataError, one_line


def cache_folder() -> Path:
    """Where downloads are kept: AUTORECALL_CACHE, or the platform's cache folder."""
    return Path(os.environ.get("AUTORECALL_CACHE") or pooch.os_cache("autorecall"))


def places(folder: Path | None) -> tuple[Path, ...]:
    """The folders to look in, best first."""
    if folder is not None:
        check_folder(folder)
        return (folder, cache_folder())
    variable = os.environ.get("AUTORECALL_DATA")
    return (Path(variable), cache_folder()) if variable else (cache_folder(),)


def find(folder: Path | None, look: Callable[[Path], Path | None]) -> Path | None:
    """What is found in the first of the folders to look in that has something."""
    return next((found for place in places(folder) if (found := look(place)) is not None), None)


def first_with(candidates: Iterable[Path], files: Sequence[str]) -> Path | None:
    """The first candidate that holds any of the files.

    Any, not all: a half-copied dataset should be reported by its reader, not replaced by a download.
    """
    return next((place for place in candidates if any((place / file).exists() for file in files)), None)


def check_folder(folder: Path) -> None:
    """Refuse a given folder that does not exist."""
    if not folder.is_dir():
        raise DataError(f"the folder {shown(folder)} does not exist; give the path of an existing folder")


@contextmanager
def disk_errors() -> Iterator[None]:
    """Report what readers do not expect: a forbidden path, a name too long, a disk that went away."""
    try:
        yield
    except OSError as error:
        where = shown(str(error.filename or "the data"))
        raise DataError(f"{where} cannot be read ({error.strerror}); check the path and its permissions") from error


def shown(name: str | Path) -> str:
    """A name in a sentence: what could garble a terminal, or turn the direction of writing, is replaced.

    >>> shown("cat\\x1b[2J")
    'cat\ufffd[2J'
    """
    return one_line(str(name))


def composed(name: str) -> str:
    """A class name as it is compared: accents may be letters of their own or not, as in folders from a Mac."""
    return unicodedata.normalize("NFC", name)


def spelling(known: Iterable[str], names: Iterable[str]) -> tuple[str, ...]:
    """Names of classes, spelled as those that are known if they are the same; a name that is known stays as it is.

    >>> spelling(["caf\u00e9"], ["cafe\u0301", "tea"])
    ('caf\u00e9', 'tea')
    """
    exact = dict.fromkeys(known)
    usual = {composed(name): name for name in exact}
    return tuple(name if name in exact else usual.get(composed(name), name) for name in names)


def twice(names: Iterable[str]) -> str | None:
    """The first name that two classes have, if any do.

    >>> twice(["caf\u00e9", "tea", "cafe\u0301"])
    'caf\u00e9'
    """
    return next((name for name, count in Counter(map(composed, names)).items() if count > 1), None)


def class_name(text: str) -> str:
    """A class name as it is kept, without control characters and undecodable bytes.

    Nothing else is replaced, as names belong to the data's fingerprint; who shows one makes it safe to show.
    """
    return "".join("\ufffd" if unicodedata.category(letter) in ("Cc", "Cs") else letter for letter in text)
