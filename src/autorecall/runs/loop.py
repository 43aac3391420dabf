"""The loop of a run: learn, test, save, and resume what was saved."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor

from ..data import Dataset, Split
from ..errors import DivergedError, InputError, InterruptedRunError, StoppedError, WriteError, one_line
from ..learners.base import Learner
from ..metrics import average_accuracy, forgetting, task_accuracy
from ..recall.batch import Recalled
from ..recall.winograd import MinimalFiltering
from ..storage.state import State, mapping
from ..stream import Stream, Task, as_batch
from ..torch_state import limited_threads, random_state, set_random_state
from .folder import MODEL, RunFolder, RunStatus, fitting
from .history import Extent, History
from .model import save_model
from .result import Diverged, MemoryCount, Point, Result, Seconds, check_curve

CURVE_IMAGES = 1000  # of a test within a task
OUR_COLUMNS = ("step", "task")  # of history.csv
KEPT_FEATURES = 50_000_000  # of all tested images: 200 MB
TEST_PIXELS = 100_000  # few enough for feature maps to stay in cache


class Observer:
    """Notified as a run progresses; subclass it for progress bars and pictures."""

    def resumed(self, step: int, steps: int) -> None:
        """The run resumes from a checkpoint made after this step."""

    def tested_before(self, step: int, task: int, accuracies: list[float]) -> None:
        """After `resumed`, for every test that the run has behind it: the end of a task, and what was found there."""

    def warned(self, sentence: str) -> None:
        """Something is wrong, such as a damaged checkpoint; the run continues."""
        warnings.warn(sentence, stacklevel=2)

    def step(self, step: int, steps: int, task: int, numbers: Mapping[str, float]) -> None:
        """A batch was learned; `step` counts from 1."""

    def evaluated(self, task: int, accuracies: list[float]) -> None:
        """A task ended and all tasks were tested."""

    def recalled(self, x: Tensor, recalled: Recalled, targets: Tensor) -> None:
        """The last batch of a finished run, what it recalled, and the teacher's probabilities for it.

        An error here becomes a warning, and costs no result.
        """

    def finished(self, result: Result) -> None:
        """The run is over: its history is complete, and its result is written next. As above, an error is a warning."""


class RunLoop:
    """A run, from its current step to its end."""

    def __init__(
        self,
        status: RunStatus,
        stream: Stream,
        learner: Learner,
        tested: Split,
        dataset: Dataset,
        observer: Observer,
        stop: Callable[[], bool],
        fresh: bool = False,
        keep_learner: bool | None = False,
    ) -> None:
        self.status, self.stream, self.learner, self.tested = status, stream, learner, tested
        self.classes, self.left_out = dataset.classes, len(dataset.left_out)
        self.observer, self.stop, self.fresh, self.keep_learner = observer, stop, fresh, keep_learner
        self.total = sum(stream.task_lengths)
        self.few = few_of_each_class(tested, CURVE_IMAGES)
        self.history = History()
        self.folder: RunFolder | None = None
        self._features: dict[int, dict[int, Tensor]] = {}  # of tested images, by split and place, if they are settled
        self._last: tuple[Tensor, Recalled, Tensor] | None = None  # what the last batch recalled

    def finish_in(self, folder: RunFolder) -> Result:
        """Resume the run in the folder, or begin it, and write everything there."""
        self.folder = folder
        try:
            self._resume_or_begin(folder)
            with self.history:
                return self.finish()
        except WriteError as error:
            raise StoppedError(f"{error}, then {self._again('run again')}") from error

    def finish(self) -> Result:
        """Learn the rest of the stream."""
        for number, task in enumerate(self.stream, start=1):
            if number > len(self.status.matrix):
                try:
                    self._learn(number, task)
                except DivergedError as error:
                    raise self._diverged(error, number) from error
        result = self._result()
        self.history.finish(self.observer.warned)
        if self.folder is not None:
            self.folder.lock.check()
            config, shape = self.status.config, self.tested.inputs.shape[1:]
            save_model(self.learner, config.network, self.classes, shape, self.folder.path / MODEL)
            if self.keep_learner or (self.keep_learner is None and not self.learner.memory().images):
                self.folder.keep(self.learner)
        self._show(lambda: self.observer.finished(result), "the curves")
        if self.folder is not None:
            self.folder.end(result)
        return result

    def _learn(self, number: int, task: Task) -> None:
        done = self.status.steps - sum(self.stream.task_lengths[: number - 1])
        if done == 0 and self.learner.waits_for_boundaries:
            self.learner.boundary()
        start = self.status.steps - done
        due = self._curve_steps(start, len(task))
        for x, y in task.after(done):
            if self.status.steps in due:
                self._add_to_curve()
            self.status.steps += 1
            with _watch(self.status.seconds, "train"):
                numbers = self._observe(x, y)
            taken = next((name for name in OUR_COLUMNS if name in numbers), None)
            if taken is not None:
                raise InputError(
                    f"{type(self.learner).__name__}.learn returned a number called {taken}, which history.csv has "
                    "already; give it another name"
                )
            self.history.add({"step": self.status.steps, "task": number} | numbers)
            self.observer.step(self.status.steps, self.total, number, numbers)
            if self.status.steps < self.total:
                self._pause()
            else:
                self._show_last()  # before the step is saved, after which it is not learned again
        self._save()  # a test may take long
        row = self._test(self.tested)
        self.status.matrix.append(row)
        if self.status.config.curve_points:
            self.status.curve.append(Point(self.status.steps, row))
        if self.status.steps < self.total:
            self._save()  # before the observer is notified, which may fail
        self.observer.evaluated(number, row)

    def _curve_steps(self, start: int, length: int) -> set[int]:
        """The steps to test after within a task that begins after step `start`; its end is tested anyway."""
        points = self.status.config.curve_points // len(self.stream)
        return {start + length * point // points for point in range(points)}

    def _add_to_curve(self) -> None:
        if self.status.curve and self.status.curve[-1].step >= self.status.steps:
            return  # before an interruption, or at the end of the task before
        with suppress(DivergedError):  # the test at the end of the task will tell, if it stays so
            self.status.curve.append(Point(self.status.steps, self._test(self.few)))

    def _test(self, split: Split) -> list[float]:
        with _watch(self.status.seconds, "evaluate"), limited_threads(self.status.threads):
            over_images = self.status.config.stream.stationary
            kept = self._features.setdefault(id(split), {})
            return evaluate(self.learner, split, self.stream.tasks, over_images, self._leave_if_told, kept)

    def _observe(self, x: Tensor, y: Tensor) -> dict[str, float]:
        if self.status.steps == self.total:
            self.learner.on_recall = lambda recalled, targets: setattr(self, "_last", (x, recalled, targets))
        return self.learner.observe(x, y)

    def _show_last(self) -> None:
        if self._last is not None:
            x, recalled, targets = self._last
            self._show(lambda: self.observer.recalled(x, recalled, targets), "the recalled images")

    def _show(self, show: Callable[[], None], what: str) -> None:
        if self.folder is not None:
            self.folder.lock.check()  # a picture must not go into another run's folder
        try:
            show()
        except Exception as error:  # not an interrupt: the end of the run is then done again, and drawn
            self.observer.warned(f"{what} could not be shown ({type(error).__name__}): {error}")

    def _pause(self) -> None:
        """Between steps: leave if told to, save if it is time."""
        self._leave_if_told()
        if self.folder is not None and self.folder.is_time(self.status.config.checkpoint_seconds):
            self._save()

    def _leave_if_told(self) -> None:
        if self.stop():
            self._save()
            again = self._again("run the same command again")
            raise InterruptedRunError(f"interrupted at step {self.status.steps} of {self.total}; {again}")

    def _again(self, words: str) -> str:
        """How to resume; the same command with --fresh would start over."""
        if self.folder is None or not self.folder.saved_step:
            return f"{words} to start over"
        if not self.folder.lock.is_held():
            return words  # whether there is anything to resume depends on what became of the folder
        words = "run the same command without --fresh" if self.fresh else words
        return f"{words} to resume from step {self.folder.saved_step}"

    def _save(self) -> None:
        if self.folder is not None and self.status.steps:  # before the first step there is nothing to resume
            self.folder.save(self.status, self.history, run_state(self.learner, self.status.config.device))

    def _resume_or_begin(self, folder: RunFolder) -> None:
        """Start where the last checkpoint left off, or at the beginning."""
        newest = folder.newest(self.status, self.observer.warned)
        if newest is None:
            folder.begin(self.status)
            self.history = folder.new_history()
            return
        then = newest.status
        with fitting(newest.path):
            self._check_status(then, newest.history)
            self.learner.load_state_dict(mapping(newest.state["learner"]))
            set_random_state(mapping(newest.state["random"]), self.status.config.device)
        self._note_changes(folder.path, self.status.versions, then.versions)
        self._note_changes(folder.path, self.status.machine, then.machine)
        self.status.steps, self.status.matrix, self.status.seconds = then.steps, then.matrix, then.seconds
        self.status.curve = then.curve
        folder.write_config(then)
        self.history = folder.resumed_history(newest, self.observer.warned)
        self.observer.resumed(then.steps, self.total)
        for task, (end, row) in enumerate(
            zip(accumulate(self.stream.task_lengths), then.matrix, strict=False), start=1
        ):
            self.observer.tested_before(end, task, row)

    def _check_status(self, then: RunStatus, history: Extent) -> None:
        """A valid checksum does not make the numbers valid: what is skipped must have been learned and tested."""
        ends = list(accumulate(self.stream.task_lengths))
        ended = sum(end <= then.steps for end in ends)
        tested = {ended, ended - (then.steps in ends)}  # a checkpoint at the end of a task may precede its test
        if not (0 < then.steps <= self.total and len(then.matrix) in tested):
            raise ValueError("steps and tests do not add up")
        lost = (history.step, history.size) == (0, 0)  # and nothing was learned since
        if not lost and (history.step != then.steps or history.size <= 0):
            raise ValueError("not the history of these steps")
        if len(then.matrix) == len(ends):
            raise ValueError("there is nothing left to do")
        if any(len(row) != len(ends) or not all(0 <= accuracy <= 100 for accuracy in row) for row in then.matrix):
            raise ValueError("a test is not one accuracy in percent for every task")
        check_curve(then.curve, then.steps, len(ends))
        if any(not 0 <= accuracy <= 100 for point in then.curve for accuracy in point.accuracies):
            raise ValueError("a point of the curve is not in percent")
        if not all(math.isfinite(value) and value >= 0 for value in (then.seconds.train, then.seconds.evaluate)):
            raise ValueError("not a time")

    def _note_changes(self, folder: Path, now: dict[str, str], then: Mapping[str, str]) -> None:
        """Another version or processor may round differently: say so, and note it in the result."""
        for name, value in now.items():
            before = one_line(then.get(name, "unknown"))[:200]  # a file may hold any text
            if before.split(", then ")[-1] != value:
                self.observer.warned(
                    f"{folder} was started with {name} {before} and resumes with {value}; its numbers may differ in "
                    "the last digits from those of one kind"
                )
                now[name] = f"{before}, then {value}"
            else:
                now[name] = before

    def _result(self) -> Result:
        """The numbers of a finished run."""
        status, memory = self.status, self.learner.memory()
        return Result(
            preset=status.preset,
            seed=status.config.seed,
            split=status.config.split,
            accuracy=average_accuracy(status.matrix),
            forgetting=forgetting(status.matrix),
            accuracy_matrix=status.matrix,
            memory=MemoryCount(
                memory.images,
                memory.image_bytes / 1e6,
                memory.parameters,
                memory.parameter_bytes / 1e6,
                memory.statistics,
                memory.statistic_bytes / 1e6,
            ),
            steps=status.steps,
            seconds=status.seconds,
            versions=status.versions,
            machine=status.machine
            | {"cores": str(os.cpu_count()), "device": status.config.device, "threads": str(status.threads)},
            data=status.data,
            parent=status.parent,
            lessons=status.lessons,
            tested=status.tested,
            curve=status.curve,
            tasks=[[self.classes[label] for label in task.classes] for task in self.stream],
            left_out=self.left_out,
        )

    def _diverged(self, error: DivergedError, task: int) -> StoppedError:
        """The run cannot continue: keep what there is, and say where it stopped."""
        steps = self.status.steps
        if self.folder is not None:
            config = self.status.config
            self.folder.end(Diverged(self.status.preset, config.seed, steps, task, error.term, str(error.value)))
        return StoppedError(f"stopped at step {steps} (task {task}): {error}")


def run_state(learner: Learner, device: str) -> State:
    """What a run needs to resume bit for bit, besides its status and history."""
    return {"learner": learner.state_dict(), "random": random_state(device)}


def few_of_each_class(split: Split, count: int) -> Split:
    """About this many images, as many of each class if there are, in the order of the split."""
    labels, found = np.unique(split.labels), []
    for label in labels:
        found.append(np.flatnonzero(split.labels == label)[: math.ceil(count / len(labels))])
    few = np.sort(np.concatenate(found))
    return replace(split, inputs=split.inputs[few], labels=split.labels[few])


def images_at_once(shape: tuple[int, ...]) -> int:
    """Images to test at once: few, if they are large."""
    return max(1, min(50, TEST_PIXELS // math.prod(shape[1:])))


def evaluate(
    learner: Learner,
    split: Split,
    tasks: tuple[Task, ...],
    over_images: bool,
    between: Callable[[], None] = lambda: None,
    kept: dict[int, Tensor] | None = None,
) -> list[float]:
    """The accuracy on each task, in percent; `between` is called after every batch.

    Features that will never change go into `kept`, for the next test of the same images.
    """
    predictions = []
    count = images_at_once(split.inputs.shape[1:])
    with MinimalFiltering():
        for start in range(0, len(split), count):
            features = None if kept is None else kept.get(start)
            if features is None:
                x, _ = as_batch(split, slice(start, start + count))
                features = None if kept is None else learner.settled_features(x)
            if (
                kept is not None
                and features is not None
                and features.numel() * len(split) <= KEPT_FEATURES * len(features)
            ):
                kept[start] = features
            logits = learner.predict(x) if features is None else learner.predict_from(features)
            if not bool(logits.isfinite().all()):
                raise DivergedError("an output of the network", float("nan"))
            predictions.append(logits.argmax(1).cpu().numpy())
            between()
    guesses = np.concatenate(predictions)
    return [task_accuracy(guesses, split.labels, task.classes, over_images) for task in tasks]


@contextmanager
def _watch(seconds: Seconds, name: Literal["train", "evaluate"]) -> Iterator[None]:
    started = time.perf_counter()
    try:
        yield
    finally:
        setattr(seconds, name, getattr(seconds, name) + time.perf_counter() - started)
