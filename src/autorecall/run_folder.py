"""The folder of one run: held by one process, belonging to one config, saved as it goes."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from .checkpoint import Checkpoints
from .config import RunConfig, from_json
from .errors import ConfigError
from .files import read_json, write_json
from .learners.state import State
from .lock import Lock
from .schema import differences, to_json


@dataclass
class Seconds:
    """Where the time went."""

    train: float = 0.0
    evaluate: float = 0.0


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
            refuse_changes(self.folder, "an unfinished", standing.config, stored_config(self.folder))
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


def refuse_other_run(folder: Path, now: Standing, then: Standing) -> None:
    """Only the same preset, settings, data and threads go on bit for bit."""
    # With no number given, threads are the machine's: what counts is how many there are.
    refuse_changes(
        folder, "an unfinished", replace(now.config, threads=now.threads), replace(then.config, threads=then.threads)
    )
    for name, mine, theirs in (("preset", now.preset, then.preset), ("data", now.data, then.data)):
        if mine != theirs:
            raise ConfigError(
                f"{folder} holds an unfinished run with other {name} ({theirs:.16}, now {mine:.16}); "
                "choose another --out, or --fresh to move it aside"
            )


def refuse_changes(folder: Path, kind: str, config: RunConfig, stored: RunConfig) -> None:
    """A folder belongs to one config: name what differs."""
    before = differences(stored, config)
    changed = [
        f"{name} (now {value}, before {before.get(name, 'none')})"
        for name, value in differences(config, stored).items()
        if name != "checkpoint_seconds"
    ]
    if changed:
        raise ConfigError(
            f"{folder} holds {kind} run that differs in {', '.join(changed)}; "
            "choose another --out, or --fresh to move it aside"
        )


def stored_config(folder: Path) -> RunConfig:
    """The config.json of a run folder."""
    values = dict(read_json(folder / "config.json"))
    values.pop("preset", None)
    return from_json(values)
