"""Fetching a public dataset into the cache: checked by SHA-256, unpacked aside, moved into place in one step."""

from __future__ import annotations

import tarfile
import tempfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pooch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from autorecall.data.locate import shown
from autorecall.errors import DataError


@dataclass(frozen=True)
class Remote:
    """One file on the internet."""

    urls: tuple[str, ...]
    """The same file on several servers, tried in order."""
    sha256: str

    @property
    def name(self) -> str:
        return self.urls[0].rsplit("/", 1)[-1]


Unpack = Callable[[Path, Path], None]
"""Unpacks a downloaded file into a folder."""


class DownloadError(Exception):
    """Why a download failed, in a few words; becomes the middle of a DataError."""


def download(
    remotes: tuple[Remote, ...], target: Path, unpack: Unpack, by_hand: str, progress: bool, allowed: bool = True
) -> None:
    """Make the folder `target` from the remote files; any failure is one DataError and leaves nothing behind.

    `by_hand` says what to put into that folder if there is no internet.
    """
    if not allowed:
        raise DataError(f"{shown(target)} does not exist; put {by_hand} into it, or allow the download")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Next to the target, so that the last step is a rename within one file system.
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".incoming-") as scratch:
            ready = Path(scratch) / "ready"
            ready.mkdir()
            for remote in remotes:
                archive = Path(scratch) / remote.name
                _fetch(remote, archive, progress)
                unpack(archive, ready)
            _move_into_place(ready, target)
    except (DownloadError, OSError) as error:
        raise DataError(
            f"{shown(target)} could not be downloaded ({_reason(error)}); "
            f"connect to the internet and try again, or put {by_hand} into that folder by hand"
        ) from error


def keep(archive: Path, into: Path) -> None:
    """No unpacking: the downloaded file is read as it is."""
    archive.rename(into / archive.name)


def members(archive: Path, into: Path, wanted: Mapping[str, int], optional: Mapping[str, int]) -> None:
    """Extract the wanted members of a .tar.gz, given with their sizes; optional ones may be absent or smaller.

    Only these names, only regular files, written under our own names: paths, links, owners and modes in the archive
    are ignored.
    """
    missing = set(wanted)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
                    continue
                if member.name in missing and member.size == wanted[member.name]:
                    missing.discard(member.name)
                elif member.name not in optional or member.size > optional[member.name]:
                    continue
                content = tar.extractfile(member)
                assert content is not None  # only members without content, such as links, have none
                with content, (into / member.name.rsplit("/", 1)[-1]).open("wb") as file:
                    while block := content.read(1 << 20):
                        file.write(block)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DownloadError(f"{archive.name} is damaged") from error
    if missing:
        raise DownloadError(f"{archive.name} does not hold {min(missing)}")


def _fetch(remote: Remote, archive: Path, progress: bool) -> None:
    failures = []
    for url in remote.urls:
        try:
            with _Bar(remote.name, visible=progress) as bar:
                # Not pooch.retrieve, which logs to the terminal on its own; the hash is checked right below.
                pooch.HTTPDownloader(progressbar=bar, chunk_size=1 << 16)(url, str(archive), None)
        except (OSError, ValueError) as error:  # all of requests' errors are OSErrors
            failures.append(f"{url}: {_reason(error)}")
            continue
        if pooch.file_hash(str(archive), alg="sha256") == remote.sha256:
            return
        failures.append(f"{url}: wrong SHA-256")
    raise DownloadError(", ".join(failures))


def _move_into_place(ready: Path, target: Path) -> None:
    try:
        ready.rename(target)
    except OSError:
        # Another process may have finished the same download first; its files are as good as ours.
        if not all((target / file.name).is_file() for file in ready.iterdir()):
            raise


def _reason(error: Exception) -> str:
    if isinstance(error, DownloadError):
        return str(error)
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return f"the server answered {status}"
    # requests wraps a failed connection in long chains of classes; a disk error has its own few words.
    return getattr(error, "strerror", None) or "no connection"


class _Bar:
    """The progress object that pooch expects, drawn by rich on stderr, and only on a terminal."""

    def __init__(self, label: str, visible: bool, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        hidden = not (visible and console.is_terminal)
        self._progress = Progress(*columns, console=console, transient=True, disable=hidden)
        self._task = self._progress.add_task(label, total=None)

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def total(self) -> float | None:
        return self._progress.tasks[0].total

    @total.setter
    def total(self, size: float) -> None:
        self._progress.update(self._task, total=size or None)  # 0 means the server did not say

    def update(self, count: int) -> None:
        self._progress.update(self._task, advance=count)

    def reset(self) -> None:
        self._progress.reset(self._task)

    def close(self) -> None:
        self._progress.stop()
