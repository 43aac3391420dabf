"""One config -> one run folder: config.json, history.csv, result.json."""

from __future__ import annotations

import csv
import importlib.metadata
import math
import os
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, TextIO

import numpy as np
import torch
from torch import Tensor

from .ascent import cores
from .config import RunConfig
from .data import Dataset, Split
from .errors import ConfigError, DataError, DivergedError, StoppedError
from .files import make_folder, move_aside, read_json, write_json
from .learners import Learner, RecallLearner, Recollection
from .metrics import average_accuracy, forgetting, task_accuracy
from .recall import AscentConfig
from .schema import decode, to_json
from .stream import Stream, Task, as_batch

LEFTOVERS = ("stopped.json", "recalled.png", "result.json")  # of an earlier run in the same folder
EVALUATION_BATCH = 500  # large enough to keep every core busy, small enough for the 84×84 feature maps


@dataclass(frozen=True)
class MemoryCount:
    """What the learner kept beside its network, as the paper counts: MB are 10⁶ bytes."""

    images: int
    image_mb: float
    parameters: int
    parameter_mb: float


@dataclass
class Seconds:
    """Where the time went."""

    train: float = 0.0
    evaluate: float = 0.0


@dataclass(frozen=True)
class Result:
    """What a run found; `result.json` holds these fields."""

    preset: str
    seed: int
    split: str
    accuracy: float
    forgetting: float | None
    accuracy_matrix: list[list[float]]
    memory: MemoryCount
    steps: int
    seconds: Seconds
    versions: dict[str, str]
    machine: dict[str, str]

    def __post_init__(self) -> None:
        if not self.accuracy_matrix or any(len(row) != len(self.accuracy_matrix) for row in self.accuracy_matrix):
            raise DataError("result.accuracy_matrix is not square; expected a row and a column for every task")


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
    preset: str,
    config: RunConfig,
    dataset: Dataset,
    folder: Path | None = None,
    observer: Observer | None = None,
    fresh: bool = False,
) -> Result:
    """Train a learner on its stream, test it after every task, and write the run folder if one is given.

    Everything that can be refused is refused before the first file is written; result.json is written last. `fresh`
    moves a folder of the same name aside, where otherwise its files are replaced.
    """
    observer = observer or Observer()
    if dataset.name != config.dataset:  # then the config alone does not say what was learned
        config = replace(config, dataset="arrays", image_size=None)
    threads = config.threads or cores()
    # Batches are small: a network is no faster on many threads, and with half of them another can run beside it.
    with _own_random_state(config), limited_threads(max(1, threads // 2)):
        stream = Stream(dataset, config.stream, config.fraction, config.seed)
        learner = build_learner(config, dataset, stream)
        tested = getattr(dataset, config.split)
        _check_tested(tested, stream, config.split)
        _check_batches(learner, stream)
        history = History(None)
        if folder is not None:
            if fresh:
                move_aside(folder)
            make_folder(folder)
            for leftover in LEFTOVERS:
                if (folder / leftover).is_file():
                    (folder / leftover).unlink()
            write_json(folder / "config.json", {"preset": preset} | to_json(config))
            history = History(folder / "history.csv")
        with history:
            progress = _Progress(preset, config, folder, observer, threads)
            progress.learn(stream, learner, tested, history)
        result = progress.result(learner)
        try:
            if progress.last is not None:
                observer.recalled(*progress.last)
        finally:  # whatever becomes of the picture
            if folder is not None:
                write_json(folder / "result.json", asdict(result))
    return result


def build_learner(config: RunConfig, dataset: Dataset, stream: Stream) -> Learner:
    """The learner around a freshly initialised network."""
    network = config.network.build(dataset.input_shape, len(dataset.classes)).to(device(config.device))
    settings = config.learner
    if config.threads == 1 and isinstance(settings, AscentConfig):
        settings = replace(settings, side_by_side=False)
    return settings.build(network, config.seed, stream.task_lengths)


def device(name: str) -> torch.device:
    """A torch device that can be used here."""
    try:
        found = torch.device(name)
        torch.empty(1, device=found).add_(1).item()
    except Exception as error:  # each backend refuses in its own way, some by failing to import
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

    def __init__(self, preset: str, config: RunConfig, folder: Path | None, observer: Observer, threads: int) -> None:
        self.preset, self.config, self.folder, self.observer, self.threads = preset, config, folder, observer, threads
        self.matrix: list[list[float]] = []
        self.seconds = Seconds()
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
                    self.steps += 1
                    with _watch(self.seconds, "train"):
                        numbers = self._observe(learner, x, y, last=self.steps == steps)
                    history.add({"step": self.steps, "task": number} | numbers)
                    self.observer.step(self.steps, steps, number, numbers)
                with _watch(self.seconds, "evaluate"), limited_threads(self.threads):
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
            memory=MemoryCount(
                memory.images, memory.image_bytes / 1e6, memory.parameters, memory.parameter_bytes / 1e6
            ),
            steps=self.steps,
            seconds=self.seconds,
            versions={"python": platform.python_version()}
            | {name: importlib.metadata.version(name) for name in ("autorecall", "torch", "numpy")},
            machine={
                "processor": platform.machine(),
                "cores": str(os.cpu_count()),
                "device": self.config.device,
                "threads": str(self.threads),
            },
        )

    def _observe(self, learner: Learner, x: Tensor, y: Tensor, last: bool) -> dict[str, float]:
        if last and isinstance(learner, RecallLearner):  # the one that has something to show
            learner.on_recall = lambda recollection: setattr(self, "last", (x, recollection))
        return learner.observe(x, y)

    def _stopped(self, error: DivergedError, task: int) -> StoppedError:
        """The run cannot go on: keep what there is, and say where it stopped."""
        if self.folder is not None:
            found = {"step": self.steps, "task": task, "term": error.term, "value": str(error.value)}
            write_json(self.folder / "stopped.json", {"preset": self.preset, "seed": self.config.seed} | found)
        return StoppedError(f"stopped at step {self.steps} (task {task}): {error}")


class History:
    """history.csv: a row a step, flushed as it goes; a number that a step did not have is an empty cell."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._columns = path, list[str]()
        self._file: TextIO | None = None
        if path is not None:
            with self._disk():
                self._file = path.open("w", encoding="utf-8", newline="")

    def add(self, row: dict[str, float]) -> None:
        """Write one step."""
        if self._file is None:
            return
        with self._disk():
            writer = csv.DictWriter(self._file, fieldnames=self._columns or list(row), lineterminator="\n")
            if not self._columns:
                self._columns = list(row)
                writer.writeheader()
            writer.writerow({name: "" if math.isnan(value) else value for name, value in row.items()})
            self._file.flush()

    def __enter__(self) -> History:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            with suppress(OSError):  # what could not be flushed was reported when it was written
                self._file.close()

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoppedError(
                f"cannot write {self._path}: {error.strerror}; check the folder and the space"
            ) from error


def _told_of_tasks(learner: Learner) -> bool:
    """Only a learner that asked for boundaries is told of them: all others see the stream alone."""
    return learner.boundaries is not None and learner.boundaries.config.policy == "boundary"


def _check_tested(split: Split, stream: Stream, name: str) -> None:
    missing = sorted({c for task in stream for c in task.classes} - set(np.unique(split.labels).tolist()))
    if missing:
        raise ConfigError(
            f"the {name} split has no image of class {missing[0]}, so its accuracy cannot be measured; add images"
        )


def _check_batches(learner: Learner, stream: Stream) -> None:
    """Show the learner the first batch, and the first that is a single image, for what it may refuse."""
    x, y = next(iter(stream[0]))
    learner.check(x, y)
    if any(len(task.order) % task.batch_size == 1 or task.batch_size == 1 for task in stream):
        learner.check(x[:1], y[:1])


@contextmanager
def _watch(seconds: Seconds, name: Literal["train", "evaluate"]) -> Iterator[None]:
    started = time.perf_counter()
    try:
        yield
    finally:
        setattr(seconds, name, getattr(seconds, name) + time.perf_counter() - started)


@contextmanager
def _own_random_state(config: RunConfig) -> Iterator[None]:
    """Initial weights and dropout use torch's global generator: seed it for the run, and put it back afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        yield


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """torch on this many threads, and as before afterwards."""
    found = torch.get_num_threads()
    try:
        torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(found)
