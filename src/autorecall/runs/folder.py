"""The folder of one run: what it belongs to, what it holds, and how a run is saved in it. Decided only here.

A folder belongs to one preset, one config, one dataset and one number of threads, and is held by one process at a time.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..config import RunConfig
from ..errors import AutorecallError, ConfigError, DataError, StoppedError
from ..learners.base import Learner
from ..learners.shared.saving import save
from ..storage.files import kind_of, read_json, write_bytes, write_json
from ..storage.formats import stamped, unstamped, upgraded_run
from ..storage.schema import decode, differences, to_json
from ..storage.state import State, mapping, tensor
from .checkpoints import FOLDER as CHECKPOINTS
from .checkpoints import Checkpoints
from .history import NAME as HISTORY
from .history import Extent, History
from .lock import NAME as LOCK_NAME
from .lock import Lock, locked
from .result import SINCE_FORMAT_3, Diverged, Lesson, Point, Result, Seconds, as_json, read_result, read_stopped

FILES = ("config.json", "result.json", "stopped.json")
RECALLED, CURVES = "recalled.png", "curves.png"  # pictures, which observers draw
LEARNER = "learner.safetensors"  # of a finished run, if it is to be kept
MODEL = "model.safetensors"  # the classifier that a finished run leaves
TENSORBOARD = "tensorboard"  # a folder of event files, if they are wanted
EVENTS = "events.out.tfevents.*"
LEFT = re.compile(
    r"\.(config\.json|result\.json|stopped\.json|history\.csv|(recalled|curves)\.png|(learner|model)\.safetensors)\.\d+\.tmp"
)


@dataclass
class RunStatus:
    """What is being run, and how far it has got; a checkpoint holds this and the learner's state."""

    preset: str
    config: RunConfig
    data: str
    """The fingerprint of the dataset."""
    threads: int
    """Those used: if unset in the config, the machine's."""
    versions: dict[str, str]
    machine: dict[str, str] = field(default_factory=dict)
    """What else the last digits depend on, such as the processor."""
    steps: int = 0
    matrix: list[list[float]] = field(default_factory=list)
    curve: list[Point] = field(default_factory=list)
    seconds: Seconds = field(default_factory=Seconds)
    parent: str = ""
    """The folder of the run that this one goes on from, if any."""
    lessons: list[Lesson] = field(default_factory=list)
    """What the result is to say of all that is learned by its end."""
    tested: str = ""
    """And the fingerprint of all that is tested."""


@dataclass(frozen=True)
class Saved:
    """A checkpoint that belongs to this run."""

    path: Path
    status: RunStatus
    history: Extent
    rows: bytes | None
    """The history itself, which checkpoints held up to format 2."""
    state: State


class RunFolder:
    """The folder of a run, held by this process."""

    def __init__(self, path: Path, lock: Lock) -> None:
        self.path, self.lock = path, lock
        self.checkpoints = Checkpoints(path)
        self.saved_step = 0  # of the last checkpoint
        self._saved_tests = 0
        self._saved_at = time.monotonic()
        self._histories = path / HISTORY, self.checkpoints.folder / HISTORY

    def finished(self, status: RunStatus) -> Result | None:
        """The result, if the run has already finished here."""
        found = _finished(self.path, status.preset, status.config, status.threads, lambda: status.data)
        if found is not None:
            self.checkpoints.remove()  # left by a process killed right after writing the result
        return found

    def newest(self, status: RunStatus, told: Callable[[str], None]) -> Saved | None:
        """How far the run got here, and the state to resume from; None if there is nothing to resume."""
        found = self.checkpoints.read(told)
        if found is None:
            return None
        path, stored = found
        with fitting(path):
            number, state = unstamped(stored)
            run = mapping(state["run"])
            then = decode(RunStatus, {**run, "config": upgraded_run(mapping(run["config"]), number)}, "checkpoint")
            assert isinstance(then, RunStatus)
            rows = tensor(state["history"]).numpy().tobytes() if number < 3 else None
            history = Extent.of(rows) if rows is not None else decode(Extent, state["history"], "history")
            assert isinstance(history, Extent)
        # If unset, threads are the machine's: what counts is the number used.
        _refuse_changes(
            self.path,
            "an unfinished",
            replace(status.config, threads=status.threads),
            replace(then.config, threads=then.threads),
        )
        _refuse_other(self.path, "an unfinished", "preset", status.preset, then.preset)
        _refuse_other(self.path, "an unfinished", "data", status.data, then.data)
        self.saved_step, self._saved_tests = then.steps, len(then.matrix)
        return Saved(path, then, history, rows, state)

    def new_history(self) -> History:
        """A history without rows."""
        return History(*self._histories)

    def resumed_history(self, saved: Saved, told: Callable[[str], None]) -> History:
        """The history as it was at a checkpoint."""
        if saved.rows is not None:
            for path in self._histories:
                write_bytes(path, saved.rows)
        return History.resumed(*self._histories, saved.history, told)

    def begin(self, status: RunStatus) -> None:
        """Start over in a folder that holds nothing to resume from."""
        if (self.path / "config.json").exists():
            # Nothing has been learned yet that other threads could change.
            _refuse_stored(self.path, "an unfinished", status.preset, status.config, status.threads)
        for name in (RECALLED, CURVES, LEARNER, MODEL):  # of a run that was killed before it could write its result
            with suppress(OSError):
                (self.path / name).unlink()
        remove_events(self.path)
        self.write_config(status)

    def write_config(self, status: RunStatus) -> None:
        """Write config.json."""
        self._write("config.json", stamped({"preset": status.preset} | to_json(status.config)))

    def is_time(self, seconds: float) -> bool:
        """Whether the last checkpoint is at least this old."""
        return time.monotonic() - self._saved_at >= seconds

    def save(self, status: RunStatus, history: History, state: State) -> None:
        """Write a checkpoint, unless the last one says the same."""
        if (status.steps, len(status.matrix)) == (self.saved_step, self._saved_tests):
            return
        self.lock.check()
        self.checkpoints.make_folder()
        self.checkpoints.write(status.steps, checkpoint(status, history.saved(), state))
        self.saved_step, self._saved_tests, self._saved_at = status.steps, len(status.matrix), time.monotonic()

    def keep(self, learner: Learner) -> None:
        """Save the learner of a finished run, for `autorecall.load`."""
        self.lock.check()
        save(learner, self.path / LEARNER)

    def end(self, found: Result | Diverged) -> None:
        """Write the last file of a run, which then needs no checkpoints."""
        self._write("result.json" if isinstance(found, Result) else "stopped.json", as_json(found))
        self.checkpoints.remove()

    def _write(self, name: str, values: object) -> None:
        self.lock.check()
        write_json(self.path / name, values)


def checkpoint(status: RunStatus, history: Extent, state: State) -> State:
    """What a checkpoint holds: not what only the result says, and what every start finds out anew."""
    run = {name: value for name, value in to_json(status).items() if name not in SINCE_FORMAT_3}
    return stamped({"run": run, "history": to_json(history), **state})


@contextmanager
def held(path: Path, fresh: bool = False, told: Callable[[str], None] = lambda _: None) -> Iterator[RunFolder]:
    """Hold the folder for this process alone, or raise the reason why not; `fresh` first moves its content aside."""
    refuse_foreign(path)
    with locked(path, fresh, told) as lock:
        _refuse_irregular(path)
        _remove_leftovers(path)
        yield RunFolder(path, lock)


def earlier_result(
    path: Path, preset: str, config: RunConfig, threads: int, fingerprint: Callable[[], str | None]
) -> Result | None:
    """The result of the same run, if it has finished; one that diverged or has other settings or data is refused.

    The fingerprint is asked for only if there is one to compare with; it is None if the data is not available, and then
    the result is trusted.
    """
    found = _finished(path, preset, config, threads, fingerprint)
    if found is not None:
        _tidy(path)
    return found


# What a folder holds


def remove_events(path: Path) -> None:
    """Remove the event files of TensorBoard."""
    for file in (path / TENSORBOARD).glob(EVENTS):
        with suppress(OSError):
            file.unlink()


def read_config(path: Path, links: bool = False) -> tuple[str, RunConfig]:
    """The preset and the config in a config.json of any format; `links` are followed."""
    number, values = unstamped(read_json(path, links))
    preset = values.pop("preset", None)
    if not isinstance(preset, str):
        raise DataError(f"its preset is {preset!r:.80}; expected a name such as mnist/arm")
    config = decode(RunConfig, upgraded_run(values, number), "config")
    assert isinstance(config, RunConfig)
    return preset, config


def is_ours(path: Path) -> bool:
    """Whether a JSON file was written by a run, even if it is damaged now."""
    try:
        return not {"preset", "seed", "dataset"}.isdisjoint(read_json(path))
    except DataError:
        return os.path.lexists(path)


def _finished(
    path: Path, preset: str, config: RunConfig, threads: int, fingerprint: Callable[[], str | None]
) -> Result | None:
    if (path / "result.json").exists():
        refuse_foreign(path)
        with _start_over_advised(path / "result.json"):
            result = read_result(path / "result.json")
        used = result.machine.get("threads", "")
        _refuse_stored(path, "a finished", preset, config, threads, int(used) if used.isdecimal() else None)
        if result.data and (fingerprint() or result.data) != result.data:
            raise DataError(f"{path} holds a finished run on other data; choose another --out, or --fresh")
        return result
    if (path / "stopped.json").exists():
        _refuse_stored(path, "a diverged", preset, config, threads)
        with _start_over_advised(path / "stopped.json"):
            found = read_stopped(path / "stopped.json")
        # The same config would end the same way, perhaps after hours.
        raise StoppedError(
            f"{path} holds a run that diverged: at step {found.step} (task {found.task}) {found.term} became "
            f"{found.value}; change its settings, or --fresh runs it again"
        )
    return None


def check_usable(path: Path) -> None:
    """Refuse a folder that no run could be written to, before another run is made."""
    check_writable(path)
    refuse_foreign(path)
    _refuse_irregular(path)


def check_writable(path: Path, what: str = "a run's folder") -> None:
    """Refuse a folder that cannot be written to, or not be made."""
    there = nearest_folder(path, what)
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"{there} cannot be written to; choose another --out")


def nearest_folder(path: Path, what: str) -> Path:
    """This folder, or the first above it that there is; anything else in its place is refused, also a dangling link."""
    there = next(place for place in (path, *path.absolute().parents) if os.path.lexists(place))
    if not there.is_dir():
        raise ConfigError(f"{there} is in the way of {what}; choose another --out, or move it aside")
    return there


def refuse_foreign(path: Path) -> None:
    """Only an empty folder or that of an earlier run is written to: anything else may be somebody's work."""
    try:
        found = [inner.name for inner in path.iterdir()]
    except OSError:  # missing, or not a folder, which is refused when it is made
        return
    ours = LOCK_NAME in found or any(is_ours(path / name) for name in FILES) or Checkpoints(path).any()
    if found and not ours:
        raise ConfigError(f"{path} holds other files and no run of autorecall; choose a new or an empty folder")


def _refuse_irregular(path: Path) -> None:
    """A link could lead out of the folder and a pipe nowhere: a run writes to neither."""
    files = [path / name for name in (*FILES, HISTORY, LEARNER, MODEL, f"{CHECKPOINTS}/{HISTORY}")]
    for place in (path / CHECKPOINTS, path / TENSORBOARD, *files, *Checkpoints(path).folders()):
        with suppress(FileNotFoundError, NotADirectoryError):
            found = place.lstat()
            expected = stat.S_ISDIR if place.name in (CHECKPOINTS, TENSORBOARD) else stat.S_ISREG
            if not expected(found.st_mode):
                raise DataError(f"{place} is {kind_of(found)}, which no run makes; remove it, or choose another --out")


def _tidy(path: Path) -> None:
    """Remove what was left by a run that was killed after writing its result."""
    left = any(LEFT.fullmatch(inner.name) for inner in path.iterdir())
    if left or Checkpoints(path).any() or (path / LOCK_NAME).exists():
        with suppress(AutorecallError), locked(path):
            if (path / "result.json").exists():
                _remove_leftovers(path)
                Checkpoints(path).remove()


def _remove_leftovers(path: Path) -> None:
    """Remove partial files left by a process killed while writing."""
    for left in [inner for inner in path.iterdir() if LEFT.fullmatch(inner.name)]:
        with suppress(OSError):
            left.unlink()
    Checkpoints(path).remove_leftovers()


# What a folder belongs to


def _refuse_stored(
    path: Path, kind: str, preset: str, config: RunConfig, threads: int, used: int | None = None
) -> None:
    """Refuse any run but that of the folder's config.json; `used` is the number of threads it had, if known."""
    with _start_over_advised(path / "config.json"):
        stored_preset, stored = read_config(path / "config.json")
    if config.threads != stored.threads and threads == (used or stored.threads or threads):
        stored = replace(stored, threads=config.threads)
    _refuse_changes(path, kind, config, stored)
    _refuse_other(path, kind, "preset", preset, stored_preset)


def _refuse_other(path: Path, kind: str, name: str, mine: str, theirs: str) -> None:
    if mine != theirs:
        raise ConfigError(
            f"{path} holds {kind} run with other {name} ({theirs:.16}, now {mine:.16}); "
            "choose another --out, or --fresh to move it aside"
        )


def _refuse_changes(path: Path, kind: str, config: RunConfig, stored: RunConfig) -> None:
    """A folder belongs to one config: name what differs."""
    before = differences(stored, config)
    changed = [
        f"{name} (now {value}, before {before.get(name, 'none')})"
        for name, value in differences(config, stored).items()
        if name not in ("checkpoint_seconds", "curve_points")
    ]
    if changed:
        same_threads = kind == "an unfinished" and len(changed) == 1 and "threads" in before
        advice = f"resume with --threads {stored.threads}, choose" if same_threads else "choose"
        raise ConfigError(
            f"{path} holds {kind} run that differs in {', '.join(changed)}; "
            f"{advice} another --out, or --fresh to move it aside"
        )


@contextmanager
def fitting(path: Path) -> Iterator[None]:
    """An intact checkpoint may come from another version; whatever that causes inside becomes one sentence."""
    try:
        yield
    except Exception as error:
        if isinstance(error, MemoryError) or "allocate" in str(error):  # torch's wording for the same
            raise
        raise ConfigError(
            f"{path} does not fit this version of autorecall or this run ({type(error).__name__}); --fresh starts over"
        ) from error


@contextmanager
def _start_over_advised(path: Path) -> Iterator[None]:
    """Errors inside name the file, and advise --fresh: the same command again would not help."""
    try:
        yield
    except AutorecallError as error:
        named = "" if str(path) in str(error) else f"{path}: "
        raise DataError(f"{named}{error}; --fresh starts over") from error
