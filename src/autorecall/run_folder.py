"""The folder of one run: held by one process, belonging to one config, saved as it goes."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from .checkpoint import Checkpoints
from .config import RunConfig, from_json
from .errors import AutorecallError, ConfigError, DataError, StoppedError
from .files import read_json, write_json
from .learners.state import State
from .lock import NAME as LOCK_NAME
from .lock import Lock, owned
from .result import Result, Seconds, read_result
from .schema import decode, differences, to_json

OURS = ("config.json", "result.json", "stopped.json")
LEFT = re.compile(r"\.(config\.json|result\.json|stopped\.json|history\.csv|recalled\.png)\.\d+\.tmp")


@dataclass
class Standing:
    """Of what a run is a run, and where it stands; beside the learner's own state, this is what a checkpoint holds."""

    preset: str
    config: RunConfig
    data: str
    threads: int
    versions: dict[str, str]
    steps: int = 0
    matrix: list[list[float]] = field(default_factory=list)
    seconds: Seconds = field(default_factory=Seconds)


@dataclass(frozen=True)
class Diverged:
    """Why a run ended before its time; `stopped.json` holds these fields."""

    preset: str
    seed: int
    step: int
    task: int
    term: str
    value: str


class RunFolder:
    """The folder of a run, held by this process."""

    def __init__(self, folder: Path, lock: Lock) -> None:
        self.folder, self.lock = folder, lock
        self.checkpoints = Checkpoints(folder)
        self.saved = 0  # the step of the last checkpoint
        self._saved_at = time.monotonic()

    def begin(self, standing: Standing) -> None:
        """Start over in a folder that holds nothing to go on from."""
        if (self.folder / "config.json").exists():
            # Nothing is learned yet that other threads could change.
            _refuse_stored(self.folder, "an unfinished", standing.preset, standing.config, standing.threads)
        with suppress(OSError):  # drawn by a run that was killed before it could write its result
            (self.folder / "recalled.png").unlink()
        self.write("config.json", {"preset": standing.preset} | to_json(standing.config))

    def write(self, name: str, values: object) -> None:
        """Write a JSON file."""
        self.lock.check()
        write_json(self.folder / name, values)

    def is_time(self, seconds: float) -> bool:
        """Whether the last checkpoint is as long ago as that."""
        return time.monotonic() - self._saved_at >= seconds

    def save(self, step: int, state: State) -> None:
        """Write a checkpoint."""
        self.lock.check()
        self.checkpoints.write(step, state)
        self.saved, self._saved_at = step, time.monotonic()

    def end(self, name: str, values: object) -> None:
        """Write the last file of a run, after which its checkpoints are of no use."""
        self.write(name, values)
        self.checkpoints.remove()


# What a folder holds


def finished_before(folder: Path, preset: str, config: RunConfig, threads: int, data: str = "") -> Result | None:
    """The result that the folder holds, if any; a run with other settings or data is refused, and one that diverged."""
    if (folder / "result.json").exists():
        with _start_over_advised(folder / "result.json"):
            result = read_result(folder / "result.json")
        used = result.machine.get("threads", "")
        _refuse_stored(folder, "a finished", preset, config, threads, int(used) if used.isdecimal() else None)
        if data and result.data and data != result.data:
            raise DataError(f"{folder} holds a finished run on other data; choose another --out, or --fresh")
        return result
    if (folder / "stopped.json").exists():
        _refuse_stored(folder, "a diverged", preset, config, threads)
        with _start_over_advised(folder / "stopped.json"):
            found = decode(Diverged, read_json(folder / "stopped.json"), "stopped")
        assert isinstance(found, Diverged)
        # The same config would end in the same way, perhaps after hours.
        raise StoppedError(
            f"{folder} holds a run that diverged: at step {found.step} (task {found.task}) {found.term} became "
            f"{found.value}; change its settings, or --fresh runs it again"
        )
    return None


def refuse_foreign(folder: Path) -> None:
    """Only an empty folder or one of an earlier run is written to: anything else may be somebody's work."""
    try:
        found = [path.name for path in folder.iterdir()]
    except OSError:  # not there, or no folder, which is refused where it is to be made
        return
    ours = LOCK_NAME in found or any(is_ours(folder / name) for name in OURS) or Checkpoints(folder).any()
    if found and not ours:
        raise ConfigError(f"{folder} holds other files and no run of autorecall; choose a new or an empty folder")


def is_ours(path: Path) -> bool:
    """Whether a JSON file is one that a run wrote, or was until it was damaged."""
    try:
        return not {"preset", "seed", "dataset"}.isdisjoint(read_json(path))
    except DataError:
        return path.exists()


def tidy(folder: Path) -> None:
    """Remove what a finished run left that was killed after writing its result."""
    left = any(LEFT.fullmatch(path.name) for path in folder.iterdir())
    if left or Checkpoints(folder).any() or (folder / LOCK_NAME).exists():
        with suppress(AutorecallError), owned(folder):
            if (folder / "result.json").exists():
                remove_leftovers(folder)
                Checkpoints(folder).remove()


def remove_leftovers(folder: Path) -> None:
    """Remove the halves of files that a process left which was killed while writing."""
    for path in [path for path in folder.iterdir() if LEFT.fullmatch(path.name)]:
        with suppress(OSError):
            path.unlink()
    Checkpoints(folder).remove_leftovers()


# To what a folder belongs


def refuse_other_run(folder: Path, now: Standing, then: Standing) -> None:
    """Only the same preset, settings, data and threads go on bit for bit."""
    # With no number given, threads are the machine's: what counts is how many there are.
    _refuse_changes(
        folder, "an unfinished", replace(now.config, threads=now.threads), replace(then.config, threads=then.threads)
    )
    _refuse_other(folder, "an unfinished", "preset", now.preset, then.preset)
    _refuse_other(folder, "an unfinished", "data", now.data, then.data)


def _refuse_stored(
    folder: Path, kind: str, preset: str, config: RunConfig, threads: int, used: int | None = None
) -> None:
    """The same of the config.json of a folder; `used` are the threads that its run had, where that is known."""
    stored_preset, stored = stored_config(folder)
    if config.threads != stored.threads and threads == (used or stored.threads or threads):
        stored = replace(stored, threads=config.threads)
    _refuse_changes(folder, kind, config, stored)
    _refuse_other(folder, kind, "preset", preset, stored_preset)


def _refuse_other(folder: Path, kind: str, name: str, mine: str, theirs: str) -> None:
    if mine != theirs:
        raise ConfigError(
            f"{folder} holds {kind} run with other {name} ({theirs:.16}, now {mine:.16}); "
            "choose another --out, or --fresh to move it aside"
        )


def _refuse_changes(folder: Path, kind: str, config: RunConfig, stored: RunConfig) -> None:
    """A folder belongs to one config: name what differs."""
    before = differences(stored, config)
    changed = [
        f"{name} (now {value}, before {before.get(name, 'none')})"
        for name, value in differences(config, stored).items()
        if name != "checkpoint_seconds"
    ]
    if changed:
        same_threads = kind == "an unfinished" and len(changed) == 1 and "threads" in before
        advice = f"go on with --threads {stored.threads}, choose" if same_threads else "choose"
        raise ConfigError(
            f"{folder} holds {kind} run that differs in {', '.join(changed)}; "
            f"{advice} another --out, or --fresh to move it aside"
        )


def stored_config(folder: Path) -> tuple[str, RunConfig]:
    """The preset and the config in the config.json of a run folder."""
    path = folder / "config.json"
    with _start_over_advised(path):
        values = dict(read_json(path))
        preset = values.pop("preset", None)
        if not isinstance(preset, str):
            raise DataError(f"the preset is {preset!r:.80}; expected a name")
        return preset, from_json(values)


@contextmanager
def _start_over_advised(path: Path) -> Iterator[None]:
    """Errors inside name the file, and what helps: giving the same command again does not."""
    try:
        yield
    except AutorecallError as error:
        named = "" if str(path) in str(error) else f"{path}: "
        raise DataError(f"{named}{error}; --fresh starts over") from error
