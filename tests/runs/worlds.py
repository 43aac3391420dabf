"""A small dataset, short runs on it, and observers that disturb them, shared by the tests of runs."""

from __future__ import annotations

import csv
import dataclasses
import errno
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from torch import Tensor

from autorecall import ARMConfig, LagConfig, LearnerConfig, LwFConfig, NaiveConfig, Recalled
from autorecall.config import RunConfig
from autorecall.data import Dataset
from autorecall.errors import InterruptedRunError
from autorecall.networks import MLPConfig
from autorecall.runs.loop import Observer
from autorecall.runs.run import run
from autorecall.storage.state_file import read_state
from autorecall.stream import StreamConfig

LEARNERS: dict[str, LearnerConfig] = {
    "naive": NaiveConfig(0.5),
    "lwf": LwFConfig(0.5, lag=LagConfig("every")),
    "lwf, told of boundaries": LwFConfig(0.5, lag=LagConfig("boundary")),
    "arm": ARMConfig(recalled_images=12, ascent_steps=2, learning_rate=0.5, lag=LagConfig("every")),
    "arm, novel classes": ARMConfig(recalled_images=4, ascent_steps=2, lag=LagConfig("novel", spacing=2)),
    "arm from noise": ARMConfig(recalled_images=4, ascent_steps=2, initial="noise", lag=LagConfig("every")),
}
STEPS = 8  # of every run: two tasks of four
NEVER = 1e9  # seconds between two checkpoints, so that only the end of a task writes one
FINISHED = {"config.json", "history.csv", "model.safetensors", "result.json"}


def bars(each: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Four classes of 8×8 images: a bright bar in one of four places, on noise."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(4), each))
    images = rng.integers(0, 100, (len(labels), 1, 8, 8), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[0, 2 * label : 2 * label + 2] += 150
    return images, labels


def config(method: LearnerConfig | str = "naive", /, **changes: object) -> RunConfig:
    """A short run of this method."""
    chosen = LEARNERS[method] if isinstance(method, str) else method
    made = RunConfig("arrays", MLPConfig((16,)), StreamConfig(2), chosen, threads=1, checkpoint_seconds=NEVER)
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


# What a folder holds


def names(folder: Path) -> set[str]:
    """The files and folders in it."""
    return {path.name for path in folder.iterdir()}


def contents(folder: Path) -> dict[str, object]:
    """All files of a run but for the time it took and how often it was saved."""
    found: dict[str, object] = {}
    for path in folder.rglob("*"):
        if path.suffix == ".json":
            values = json.loads(path.read_text())
            values.pop("seconds", None)
            values.pop("checkpoint_seconds", None)
            found[path.name] = values
        elif path.name in ("learner.safetensors", "model.safetensors"):
            found[path.name] = checksum(path)
        elif path.is_file():
            found[path.name] = path.read_bytes()
    return found


def checksum(path: Path) -> str:
    """That over everything in a saved state; the file itself holds its parts in any order."""
    read_state(path)  # it is right
    with safe_open(path, "pt") as file:
        return str(file.metadata()["sha256"])


def history(folder: Path) -> list[dict[str, str]]:
    """The rows of history.csv."""
    with (folder / "history.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def saved(folder: Path) -> list[int]:
    """The steps of its checkpoints."""
    return [int(path.stem.removeprefix("step-")) for path in sorted(folder.glob("checkpoints/step-*"))]


# What may happen to a run


class Killed(BaseException):
    """What a run cannot see coming: nothing of ours catches it."""


class Watch(Observer):
    """Notes what it is told, and may kill the run after a step."""

    def __init__(self, killed_after: int = 0) -> None:
        self.killed_after = killed_after
        self.first, self.resumptions, self.warnings = 0, list[int](), list[str]()
        self.pictures: list[tuple[Tensor, Recalled, Tensor]] = []

    def resumed(self, step: int, steps: int) -> None:
        assert steps == STEPS
        self.resumptions.append(step)

    def warned(self, sentence: str) -> None:
        self.warnings.append(sentence)

    def step(self, step: int, steps: int, task: int, numbers: Mapping[str, float]) -> None:
        self.first = self.first or step
        if step == self.killed_after:
            raise Killed

    def recalled(self, x: Tensor, recalled: Recalled, targets: Tensor) -> None:
        self.pictures.append((x, recalled, targets))


class Stop(Observer):
    """Stops a run after a step."""

    def __init__(self, after: int) -> None:
        self.after, self.now = after, 0

    def step(self, step: int, steps: int, task: int, numbers: Mapping[str, float]) -> None:
        self.now = step

    def __call__(self) -> bool:
        return self.now >= self.after


class Trouble(Observer):
    """Does something after a step."""

    def __init__(self, step: int, make: Callable[[], object]) -> None:
        self.at, self.make = step, make

    def step(self, step: int, steps: int, task: int, numbers: Mapping[str, float]) -> None:
        if step == self.at:
            self.make()


def kill(chosen: RunConfig, data: Dataset, folder: Path, step: int) -> None:
    """Run until a step is learned, and no further: what it would have saved then is not there."""
    with pytest.raises(Killed):
        run("own/bars", chosen, data, folder, Watch(killed_after=step))


def interrupt(chosen: RunConfig, data: Dataset, folder: Path, step: int, preset: str = "own/bars") -> str:
    """Run until after a step, and what was said then."""
    stop = Stop(step)
    with pytest.raises(InterruptedRunError) as caught:
        run(preset, chosen, data, folder, stop, stop=stop)
    return str(caught.value)


def full_disk(*_: object, **__: object) -> None:
    """In the place of a function of the system."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
