"""The last two checkpoints of a run: the older one is for when the newer is damaged."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..errors import DataError, StoppedError, UnreadableError
from ..storage.files import sync_folder, writing
from ..storage.state import State
from ..storage.state_file import read_state, write_state

KEPT = 2
FOLDER = "checkpoints"
WHOLE = re.compile(r"step-\d+\.safetensors")
DAMAGED = re.compile(r"step-\d+\.damaged")
COPY = re.compile(r"history\.csv")  # of the run's
LEFT = re.compile(r"\.(step-\d+\.safetensors|history\.csv)\.\d+\.tmp")  # by a process killed while writing


class Checkpoints:
    """The checkpoints in a run folder."""

    def __init__(self, run_folder: Path) -> None:
        self.folder = run_folder / FOLDER

    def make_folder(self) -> None:
        """Make the folder, if there is none."""
        with writing(f"to {self.folder}"):
            if not self.folder.exists():
                self.folder.mkdir()  # without parents: a lost run folder is not recreated
                sync_folder(self.folder.parent)

    def write(self, step: int, state: State) -> None:
        """Add a checkpoint, and remove all but the last two."""
        self.make_folder()
        write_state(self.folder / f"step-{step:09}.safetensors", state)
        with writing(f"to {self.folder}"):
            for old in self._files(WHOLE)[:-KEPT]:
                old.unlink()

    def read(self, told: Callable[[str], None]) -> tuple[Path, State] | None:
        """The newest intact one; damaged ones are reported to `told` and put aside.

        One that cannot be read this time may be intact: then nothing is touched, and the run does not resume.
        """
        try:
            paths = self._files(WHOLE)
            damaged = []
            for path in reversed(paths):
                try:
                    state = read_state(path)
                except UnreadableError:
                    raise
                except DataError:
                    damaged.append(path)
                else:
                    self._put_aside(damaged, told)
                    return path, state
        except UnreadableError as error:
            raise StoppedError(f"{error} and run again, or --fresh starts over") from error
        self._put_aside(damaged, told)
        if damaged:
            told(f"no checkpoint in {self.folder} is intact; the run starts over")
        return None

    def folders(self) -> list[Path]:
        """Folders with the name of a checkpoint, which are in the way of one."""
        return [path for path in self._files(WHOLE) if path.is_dir() and not path.is_symlink()]

    def any(self) -> bool:
        """Whether any file of ours is there."""
        try:
            return bool(self._files(WHOLE, DAMAGED, LEFT))
        except UnreadableError:  # unknown
            return True

    def remove(self) -> None:
        """Remove them all, and nothing else; a finished run has no use for them."""
        with suppress(OSError, UnreadableError):  # other files may be there, too
            self._unlink(WHOLE, DAMAGED, COPY, LEFT)
            self.folder.rmdir()

    def remove_leftovers(self) -> None:
        """Remove partial files left by a process killed while writing."""
        with suppress(UnreadableError):
            self._unlink(LEFT)

    def _put_aside(self, damaged: list[Path], told: Callable[[str], None]) -> None:
        """Out of the way of later ones, which may have lower numbers."""
        for path in damaged:
            told(f"the checkpoint {path} is damaged and was skipped")
            with writing(f"to {self.folder}"):
                path.replace(path.with_suffix(".damaged"))

    def _unlink(self, *kinds: re.Pattern[str]) -> None:
        for path in self._files(*kinds):
            with suppress(OSError):
                path.unlink()

    def _files(self, *kinds: re.Pattern[str]) -> list[Path]:
        try:
            found = list(self.folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise UnreadableError(f"cannot read {self.folder}: {error.strerror}; check the path") from error
        return sorted(path for path in found if any(kind.fullmatch(path.name) for kind in kinds))
