"""One config -> one run folder: config.json, history.csv, result.json."""

from __future__ import annotations

import csv
import importlib.metadata
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .config import RunConfig
from .data import Dataset, Split
from .errors import ConfigError, DivergedError, StoppedError
from .files import make_folder, read_json, write_json
from .learners import ARM, Learner, Recollection
from .metrics import average_accuracy, forgetting, task_accuracy
from .schema import decode, to_json
from .stream import Stream, Task, as_batch

EVALUATION_BATCH = 500  # large enough to keep every core busy, small enough for the 84×84 feature maps


@dataclass(frozen=True)
class Result:
    """What a run found; `result.json` holds these fields."""

    preset: str
    seed: int
    split: str
    accuracy: float
    forgetting: float | None
    accuracy_matrix: list[list[float]]
    memory: dict[str, float]
    steps: int
    seconds: dict[str, float]
    versions: dict[str, str]
    machine: dict[str, str]


def read_result(path: Path) -> Result:
    """A result.json, checked field by field."""
    result = decode(Result, read_json(path), "result")
    assert isinstance(result, Result)
    return result


class Observer:
    """Told of a run as it goes; subclass it for progress bars and pictures."""

    def step(self, step: int, steps: int, task: int, numbers: Mapping[str, float]) -> None:
        """A batch was learned; `step` counts from 1."""

    def evaluated(self, task: int, accuracies: list[float]) -> None:
        """A task ended and all tasks were tested."""

    def recalled(self, x: Tensor, recollection: Recollection) -> None:
        """The last batch of a finished run, and what it recalled."""


def run(
    preset: str, config: RunConfig, dataset: Dataset, folder: Path | None = None, observer: Observer | None = None
) -> Result:
    """Train a learner on its stream, test it after every task, and write the run folder if one is given.

    Everything that can be refused is refused before the first file is written; result.json is written last.
    """
    observer = observer or Observer()
    with _own_random_state(config), limited_threads(config.threads):
        stream = Stream(dataset, config.stream, config.fraction, config.seed)
        learner = build_learner(config, dataset, stream)
        tested = getattr(dataset, config.split)
        _check_tested(tested, stream, config.split)
        history = History(None)
        if folder is not None:
            make_folder(folder)
            write_json(folder / "config.json", {"preset": preset} | to_json(config))
            history = History(folder / "history.csv")
        with history:
            progress = _Progress(preset, config, folder, observer)
            progress.learn(stream, learner, tested, history)
        result = progress.result(learner)
        if progress.last is not None:
            observer.recalled(*progress.last)
        if folder is not None:
            write_json(folder / "result.json", asdict(result))
    return result


def build_learner(config: RunConfig, dataset: Dataset, stream: Stream) -> Learner:
    """The learner around a freshly initialised network."""
    network = config.network.build(dataset.input_shape, len(dataset.classes)).to(device(config.device))
    return config.learner.build(network, config.seed, stream.task_lengths)


def device(name: str) -> torch.device:
    """A torch device that can be used here."""
    try:
        found = torch.device(name)
        torch.empty(1, device=found).add_(1).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(f"device is {name!r}, which torch cannot use here; expected one such as cpu") from error
    return found


def evaluate(learner: Learner, split: Split, tasks: tuple[Task, ...], plain: bool) -> list[float]:
    """The accuracy on each task, in percent."""
    predictions = []
    for start in range(0, len(split), EVALUATION_BATCH):
        x, _ = as_batch(split, slice(start, start + EVALUATION_BATCH))
        logits = learner.predict(x)
        if not bool(logits.isfinite().all()):
            raise DivergedError("an output of the network", float("nan"))
        predictions.append(logits.argmax(1).cpu().numpy())
    guesses = np.concatenate(predictions)
    return [task_accuracy(guesses, split.labels, task.classes, plain) for task in tasks]


class _Progress:
    """Where a run stands."""

    def __init__(self, preset: str, config: RunConfig, folder: Path | None, observer: Observer) -> None:
        self.preset, self.config, self.folder, self.observer = preset, config, folder, observer
        self.matrix: list[list[float]] = []
        self.seconds = {"train": 0.0, "evaluate": 0.0}
        self.steps = 0
        self.last: tuple[Tensor, Recollection] | None = None

    def learn(self, stream: Stream, learner: Learner, tested: Split, history: History) -> None:
        """Go through the stream."""
        steps = sum(stream.task_lengths)
        for number, task in enumerate(stream, start=1):
            if _told_of_tasks(learner):
                learner.boundary()
            try:
                for x, y in task:
                    with _watch(self.seconds, "train"):
                        numbers = self._observe(learner, x, y, last=self.steps + 1 == steps)
                    self.steps += 1
                    history.add({"step": self.steps, "task": number} | numbers)
                    self.observer.step(self.steps, steps, number, numbers)
                with _watch(self.seconds, "evaluate"):
                    row = evaluate(learner, tested, stream.tasks, self.config.stream.stationary)
            except DivergedError as error:
                raise self._stopped(error, number) from error
            self.matrix.append(row)
            self.observer.evaluated(number, row)

    def result(self, learner: Learner) -> Result:
        """The numbers of a finished run."""
        memory = learner.memory()
        return Result(
            preset=self.preset,
            seed=self.config.seed,
            split=self.config.split,
            accuracy=average_accuracy(self.matrix),
            forgetting=forgetting(self.matrix),
            accuracy_matrix=self.matrix,
            memory={
                "images": memory.images,
                "image_mb": memory.image_bytes / 1e6,
                "parameters": memory.parameters,
                "parameter_mb": memory.parameter_bytes / 1e6,
            },
            steps=self.steps,
            seconds=self.seconds,
            versions={"python": platform.python_version()}
            | {name: importlib.metadata.version(name) for name in ("autorecall", "torch", "numpy")},
            machine={
                "processor": platform.machine(),
                "cores": str(os.cpu_count()),
                "device": self.config.device,
                "threads": str(torch.get_num_threads()),
            },
        )

    def _observe(self, learner: Learner, x: Tensor, y: Tensor, last: bool) -> dict[str, float]:
        if last and isinstance(learner, ARM):
            learner.on_recall = lambda recollection: setattr(self, "last", (x, recollection))
        return learner.observe(x, y)

    def _stopped(self, error: DivergedError, task: int) -> StoppedError:
        """The run cannot go on: keep what there is, and say where it stopped."""
        step = self.steps + 1
        if self.folder is not None:
            found = {"step": step, "task": task, "term": error.term, "value": str(error.value)}
            write_json(self.folder / "stopped.json", {"preset": self.preset, "seed": self.config.seed} | found)
        return StoppedError(f"stopped at step {step} (task {task}): {error}")


class History:
    """history.csv: a row a step, flushed as it goes; a number that a step did not have is an empty cell."""

    def __init__(self, path: Path | None) -> None:
        self._file = None if path is None else path.open("w", encoding="utf-8", newline="")
        self._writer: Callable[[dict[str, float]], object] | None = None

    def add(self, row: dict[str, float]) -> None:
        """Write one step."""
        if self._file is None:
            return
        if self._writer is None:
            writer = csv.DictWriter(self._file, fieldnames=list(row), lineterminator="\n")
            writer.writeheader()
            self._writer = writer.writerow
        self._writer({name: "" if math.isnan(value) else value for name, value in row.items()})  # type: ignore[misc]
        self._file.flush()

    def __enter__(self) -> History:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()


def _told_of_tasks(learner: Learner) -> bool:
    """Only a learner that asked for boundaries is told of them: all others see the stream alone."""
    teacher = getattr(learner, "teacher", None)
    return teacher is not None and teacher.config.policy == "boundary"


def _check_tested(split: Split, stream: Stream, name: str) -> None:
    missing = sorted({c for task in stream for c in task.classes} - set(np.unique(split.labels).tolist()))
    if missing:
        raise ConfigError(
            f"the {name} split has no image of class {missing[0]}, so its accuracy cannot be measured; add images"
        )


@contextmanager
def _watch(seconds: dict[str, float], name: str) -> Iterator[None]:
    started = time.perf_counter()
    try:
        yield
    finally:
        seconds[name] += time.perf_counter() - started


@contextmanager
def _own_random_state(config: RunConfig) -> Iterator[None]:
    """Initial weights and dropout use torch's global generator: seed it for the run, and put it back afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        yield


@contextmanager
def limited_threads(count: int | None) -> Iterator[None]:
    """torch on this many threads, and as before afterwards."""
    found = torch.get_num_threads()
    try:
        torch.set_num_threads(count or found)
        yield
    finally:
        torch.set_num_threads(found)
