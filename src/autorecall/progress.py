"""A run as it goes: learn, test, save, and take up again what was saved."""

from __future__ import annotations

import os
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from itertools import accumulate, islice
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from .data import Split
from .errors import ConfigError, DivergedError, InterruptedRunError, StoppedError, WriteError
from .history import History
from .learners import Learner, RecallLearner, Recollection
from .learners.state import mapping, tensor
from .lock import Lock
from .metrics import average_accuracy, forgetting, task_accuracy
from .result import MemoryCount, Result, Seconds
from .run_folder import Diverged, RunFolder, Standing, refuse_other_run
from .schema import decode, to_json
from .stream import Stream, Task, as_batch
from .torch_state import limited_threads, random_state, set_random_state

EVALUATION_BATCH = 50  # few enough for their feature maps to stay in the cache


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
        """The last batch of a finished run, and what it recalled; an error here is a warning, and costs no result."""


class Progress:
    """A run, from where it stands to its end."""

    def __init__(
        self,
        standing: Standing,
        stream: Stream,
        learner: Learner,
        tested: Split,
        observer: Observer,
        stop: Callable[[], bool],
        fresh: bool = False,
    ) -> None:
        self.now, self.stream, self.learner, self.tested = standing, stream, learner, tested
        self.observer, self.stop, self.fresh = observer, stop, fresh
        self.total = sum(stream.task_lengths)
        self.history = History()
        self.last: tuple[Tensor, Recollection] | None = None
        self.place: RunFolder | None = None

    def finish_in(self, folder: Path, lock: Lock) -> Result:
        """Go on with what the folder holds, or begin, and write it all there."""
        self.place = RunFolder(folder, lock)
        try:
            self._take_up(self.place)
            with self.history:
                return self.finish()
        except WriteError as error:
            raise StoppedError(f"{error}, then {self._again('run again')}") from error

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
        self._show_last()
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
        self._save()  # before anyone is told, who may fail
        self.observer.evaluated(number, row)

    def _observe(self, x: Tensor, y: Tensor) -> dict[str, float]:
        if self.now.steps == self.total and isinstance(self.learner, RecallLearner):  # has something to show
            self.learner.on_recall = lambda recollection: setattr(self, "last", (x, recollection))
        return self.learner.observe(x, y)

    def _show_last(self) -> None:
        if self.last is None:
            return
        if self.place is not None:
            self.place.lock.check()  # a picture must not go into a folder that is another's by now
        try:
            self.observer.recalled(*self.last)
        except Exception as error:  # an interrupt is none: then the last steps are learned again, and it is drawn
            self.observer.warned(f"the recalled images could not be shown ({type(error).__name__}): {error}")

    def _pause(self) -> None:
        """Between two steps: save if it is time, leave if told."""
        self._leave_if_told()
        if self.place is not None and self.place.is_time(self.now.config.checkpoint_seconds):
            self._save()

    def _leave_if_told(self) -> None:
        if self.stop():
            self._save()
            again = self._again("run the same command again")
            raise InterruptedRunError(f"interrupted at step {self.now.steps} of {self.total}; {again}")

    def _again(self, words: str) -> str:
        """How to go on, which the same command does not if it says --fresh."""
        if self.place is None or not self.place.saved:
            return f"{words} to start over"
        if not self.place.lock.is_held():
            return words  # whether there is something to go on from depends on what became of the folder
        return (
            f"{'run the same command without --fresh' if self.fresh else words} to go on from step {self.place.saved}"
        )

    def _save(self) -> None:
        # Not after the last step, which has its recalled images to show: whoever ends a run has done that step.
        if self.place is not None and self.now.steps < self.total:
            self.place.save(self.now.steps, run_state(self.now, self.learner, self.history))

    def _take_up(self, place: RunFolder) -> None:
        """Where the last checkpoint left off, or at the beginning."""
        found = place.checkpoints.read(self.observer.warned)
        if found is None:
            place.begin(self.now)
            self.history = History(place.folder / "history.csv")
            return
        path, state = found
        with _fitting(path):
            then = decode(Standing, state["run"], "checkpoint")
            assert isinstance(then, Standing)
        refuse_other_run(place.folder, self.now, then)
        with _fitting(path):
            text = tensor(state["history"]).numpy().tobytes().decode()
            self._check_standing(then, History(text=text).rows)
            self.learner.load_state_dict(mapping(state["learner"]))
            set_random_state(mapping(state["random"]), self.now.config.device)
        self._note_versions(place.folder, then.versions)
        self.now.steps, self.now.matrix, self.now.seconds = then.steps, then.matrix, then.seconds
        place.saved = then.steps
        place.write("config.json", {"preset": then.preset} | to_json(then.config))
        self.history = History(place.folder / "history.csv", text)
        self.observer.resumed(then.steps, self.total)

    def _check_standing(self, then: Standing, rows: int) -> None:
        """A right checksum does not make a wrong number right: what is skipped must have been learned and tested."""
        ends = list(accumulate(self.stream.task_lengths))
        ended = sum(end <= then.steps for end in ends)
        tested = {ended, ended - (then.steps in ends)}  # a checkpoint at the end of a task may be of before its test
        widths = {len(row) for row in then.matrix}
        if not (0 < then.steps < self.total and rows == then.steps and len(then.matrix) in tested):
            raise ValueError("steps, rows and tests do not add up")
        if not widths <= {len(ends)}:
            raise ValueError("a test is not of every task")

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
        "random": random_state(standing.config.device),
        "history": torch.frombuffer(bytearray(history.text.encode()), dtype=torch.uint8),
    }


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


def _told_of_tasks(learner: Learner) -> bool:
    """Only a learner that asked for boundaries is told of them: all others see the stream alone."""
    return learner.boundaries is not None and learner.boundaries.config.policy == "boundary"


@contextmanager
def _fitting(path: Path) -> Iterator[None]:
    """A checkpoint can be whole and yet of another version; whatever that leads to inside is one sentence."""
    try:
        yield
    except Exception as error:
        if isinstance(error, MemoryError) or "allocate" in str(error):  # how torch says the same
            raise
        raise ConfigError(
            f"{path} does not fit this version of autorecall or this run ({type(error).__name__}); --fresh starts over"
        ) from error


@contextmanager
def _watch(seconds: Seconds, name: Literal["train", "evaluate"]) -> Iterator[None]:
    started = time.perf_counter()
    try:
        yield
    finally:
        setattr(seconds, name, getattr(seconds, name) + time.perf_counter() - started)
