"""One config -> one run folder: config.json, history.csv, result.json, and checkpoints for as long as it runs."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from .ascent import cores
from .checkpoint import Checkpoints
from .config import RunConfig
from .data import Dataset, Split
from .errors import (
    AutorecallError,
    ConfigError,
    DataError,
    DivergedError,
    InterruptedRunError,
    StoppedError,
    WriteError,
)
from .files import read_json
from .history import History
from .learners import Learner, RecallLearner, Recollection
from .learners.state import State, mapping, tensor
from .lock import Lock, owned
from .metrics import average_accuracy, forgetting, task_accuracy
from .recall import AscentConfig
from .run_folder import Diverged, RunFolder, Standing, refuse_changes, refuse_other_run, stored_config
from .run_folder import Seconds as Seconds
from .schema import decode, to_json
from .stream import Stream, Task, as_batch

EVALUATION_BATCH = 50  # so few that feature maps stay in the cache: half as long again with 500
VERSIONS = ("autorecall", "torch", "numpy")


@dataclass(frozen=True)
class MemoryCount:
    """What the learner kept beside its network, as the paper counts: MB are 10⁶ bytes."""

    images: int
    image_mb: float
    parameters: int
    parameter_mb: float


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
    data: str = ""
    """The fingerprint of the data; results of before it was noted have none."""

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

    def resumed(self, step: int, steps: int) -> None:
        """The run goes on from a checkpoint, made after this step."""

    def warned(self, sentence: str) -> None:
        """Something is not as it should be, such as a damaged checkpoint; the run goes on."""
        warnings.warn(sentence, stacklevel=2)

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
    stop: Callable[[], bool] = lambda: False,
) -> Result:
    """Train a learner on its stream, test it after every task, and write the run folder if one is given.

    A folder with an unfinished run goes on from its last checkpoint and ends as if it had never been interrupted; of a
    finished run, the result is returned. A folder belongs to one config and one dataset: another is refused. `fresh`
    moves a folder of the same name aside and starts over. When `stop` says so, the run is saved and ends with an
    InterruptedRunError.

    Everything that can be refused is refused before the first file is written; result.json is written last.
    """
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
        standing = Standing(preset, config, dataset.fingerprint(), threads, _versions())
        progress = _Progress(standing, stream, learner, tested, observer or Observer(), stop)
        if folder is None:
            return progress.finish()
        with owned(folder, fresh) as lock:
            earlier = finished_before(folder, config, standing.data)
            return progress.finish_in(folder, lock) if earlier is None else earlier


def finished_before(folder: Path, config: RunConfig, data: str = "") -> Result | None:
    """The result that the folder holds, if any; a run with other settings or data is refused, and one that diverged."""
    if (folder / "result.json").exists():
        refuse_changes(folder, "a finished", config, stored_config(folder))
        result = read_result(folder / "result.json")
        if data and result.data and data != result.data:
            raise DataError(f"{folder} holds a finished run on other data; choose another folder, or start afresh")
        return result
    if (folder / "stopped.json").exists():
        refuse_changes(folder, "a diverged", config, stored_config(folder))
        found = decode(Diverged, read_json(folder / "stopped.json"), "stopped")
        assert isinstance(found, Diverged)
        # The same config would end in the same way, perhaps after hours.
        raise StoppedError(
            f"{folder} holds a run that diverged: at step {found.step} (task {found.task}) {found.term} became "
            f"{found.value}; change its settings, or --fresh runs it again"
        )
    return None


def tidy(folder: Path) -> None:
    """Remove what a finished run left that was killed after writing its result."""
    if any(path.exists() for path in (folder / "checkpoints", folder / ".lock", *folder.glob(".*.tmp"))):
        with suppress(AutorecallError), owned(folder):
            if (folder / "result.json").exists():
                Checkpoints(folder).remove()


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


def evaluate(
    learner: Learner, split: Split, tasks: tuple[Task, ...], plain: bool, between: Callable[[], None] = lambda: None
) -> list[float]:
    """The accuracy on each task, in percent; `between` is called after every batch."""
    predictions = []
    for start in range(0, len(split), EVALUATION_BATCH):
        x, _ = as_batch(split, slice(start, start + EVALUATION_BATCH))
        logits = learner.predict(x)
        if not bool(logits.isfinite().all()):
            raise DivergedError("an output of the network", float("nan"))
        predictions.append(logits.argmax(1).cpu().numpy())
        between()
    guesses = np.concatenate(predictions)
    return [task_accuracy(guesses, split.labels, task.classes, plain) for task in tasks]


class _Progress:
    """A run as it goes."""

    def __init__(
        self,
        standing: Standing,
        stream: Stream,
        learner: Learner,
        tested: Split,
        observer: Observer,
        stop: Callable[[], bool],
    ) -> None:
        self.now, self.stream, self.learner, self.tested = standing, stream, learner, tested
        self.observer, self.stop = observer, stop
        self.total = sum(stream.task_lengths)
        self.history = History()
        self.last: tuple[Tensor, Recollection] | None = None
        self.place: RunFolder | None = None

    def finish_in(self, folder: Path, lock: Lock) -> Result:
        """Go on with what the folder holds, or begin, and write it all there."""
        self.place = place = RunFolder(folder, lock)
        try:
            self._take_up(place)
            with self.history:
                return self.finish()
        except WriteError as error:
            again = f"run again to go on from step {place.saved}" if place.saved else "run again"
            raise StoppedError(f"{error}, then {again}") from error

    def finish(self) -> Result:
        """Learn what is left of the stream."""
        for number, task in enumerate(self.stream, start=1):
            if number > len(self.now.matrix):
                try:
                    self._learn(number, task)
                except DivergedError as error:
                    raise self._diverged(error, number) from error
        result = self._result()
        self.history.sync()
        try:
            if self.last is not None:
                self.observer.recalled(*self.last)
        finally:  # whatever becomes of the picture
            if self.place is not None:
                self.place.end("result.json", asdict(result))
        return result

    def _learn(self, number: int, task: Task) -> None:
        done = self.now.steps - sum(self.stream.task_lengths[: number - 1])
        if done == 0 and _told_of_tasks(self.learner):
            self.learner.boundary()
        for x, y in islice(task, done, None):
            self.now.steps += 1
            with _watch(self.now.seconds, "train"):
                numbers = self._observe(x, y)
            self.history.add({"step": self.now.steps, "task": number} | numbers)
            self.observer.step(self.now.steps, self.total, number, numbers)
            self._pause()
        with _watch(self.now.seconds, "evaluate"), limited_threads(self.now.threads):
            plain = self.now.config.stream.stationary
            row = evaluate(self.learner, self.tested, self.stream.tasks, plain, self._leave_if_told)
        self.now.matrix.append(row)
        self.observer.evaluated(number, row)
        self._save()

    def _observe(self, x: Tensor, y: Tensor) -> dict[str, float]:
        if self.now.steps == self.total and isinstance(self.learner, RecallLearner):  # has something to show
            self.learner.on_recall = lambda recollection: setattr(self, "last", (x, recollection))
        return self.learner.observe(x, y)

    def _pause(self) -> None:
        """Between two steps: save if it is time, leave if told."""
        self._leave_if_told()
        if self.place is not None and self.place.is_time(self.now.config.checkpoint_seconds):
            self._save()

    def _leave_if_told(self) -> None:
        if self.stop():
            self._save()
            saved = self.place.saved if self.place is not None else 0
            again = f"to go on from step {saved}" if saved else "to start over"
            raise InterruptedRunError(
                f"interrupted at step {self.now.steps} of {self.total}; run the same command again {again}"
            )

    def _save(self) -> None:
        # Not after the last step, which has its recalled images to show: whoever ends a run has done that step.
        if self.place is not None and self.now.steps < self.total:
            self.place.save(self.now.steps, run_state(self.now, self.learner, self.history))

    def _take_up(self, place: RunFolder) -> None:
        """Where the last checkpoint left off, or at the beginning."""
        state = place.checkpoints.read(self.observer.warned)
        if state is None:
            place.begin(self.now)
            self.history = History(place.folder / "history.csv")
            return
        then = decode(Standing, state["run"], "checkpoint")
        assert isinstance(then, Standing)
        refuse_other_run(place.folder, self.now, then)
        self.learner.load_state_dict(mapping(state["learner"]))
        _set_random_state(mapping(state["random"]), self.now.config.device)
        self._note_versions(place.folder, then.versions)
        self.now.steps, self.now.matrix, self.now.seconds = then.steps, then.matrix, then.seconds
        place.saved = then.steps
        place.write("config.json", {"preset": then.preset} | to_json(then.config))
        text = tensor(state["history"]).numpy().tobytes().decode()
        self.history = History(place.folder / "history.csv", text)
        self.observer.resumed(then.steps, self.total)

    def _note_versions(self, folder: Path, then: Mapping[str, str]) -> None:
        """Other versions may round otherwise: that is said, and kept in the result."""
        for name, now in self.now.versions.items():
            before = then.get(name, "unknown")
            if before.split(", then ")[-1] != now:
                self.observer.warned(
                    f"{folder} was begun with {name} {before} and goes on with {now}; its numbers may differ in the "
                    "last digits from those of one version"
                )
                self.now.versions[name] = f"{before}, then {now}"
            else:
                self.now.versions[name] = before

    def _result(self) -> Result:
        """The numbers of a finished run."""
        now, memory = self.now, self.learner.memory()
        return Result(
            preset=now.preset,
            seed=now.config.seed,
            split=now.config.split,
            accuracy=average_accuracy(now.matrix),
            forgetting=forgetting(now.matrix),
            accuracy_matrix=now.matrix,
            memory=MemoryCount(
                memory.images, memory.image_bytes / 1e6, memory.parameters, memory.parameter_bytes / 1e6
            ),
            steps=now.steps,
            seconds=now.seconds,
            versions=now.versions,
            machine={
                "processor": platform.machine(),
                "cores": str(os.cpu_count()),
                "device": now.config.device,
                "threads": str(now.threads),
            },
            data=now.data,
        )

    def _diverged(self, error: DivergedError, task: int) -> StoppedError:
        """The run cannot go on: keep what there is, and say where it stopped."""
        steps = self.now.steps
        if self.place is not None:
            found = Diverged(self.now.preset, self.now.config.seed, steps, task, error.term, str(error.value))
            self.place.end("stopped.json", asdict(found))
        return StoppedError(f"stopped at step {steps} (task {task}): {error}")


def run_state(standing: Standing, learner: Learner, history: History) -> dict[str, object]:
    """Everything that a run needs to go on bit for bit."""
    return {
        "run": to_json(standing),
        "learner": learner.state_dict(),
        "random": _random_state(standing.config.device),
        "history": torch.frombuffer(bytearray(history.text.encode()), dtype=torch.uint8),
    }


def _versions() -> dict[str, str]:
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in VERSIONS}


def _random_state(name: str) -> dict[str, Tensor]:
    """torch's global generators, from which dropout draws."""
    cuda = {"cuda": torch.cuda.get_rng_state(name)} if torch.device(name).type == "cuda" else {}
    return {"cpu": torch.get_rng_state()} | cuda


def _set_random_state(state: State, name: str) -> None:
    torch.set_rng_state(tensor(state["cpu"]))
    if "cuda" in state:
        torch.cuda.set_rng_state(tensor(state["cuda"]), name)


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
