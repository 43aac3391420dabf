"""TensorBoard: what a run writes as event files, in the folder tensorboard/ of the run.

They hold nothing that the run folder does not: history.csv as it grows, the accuracies after every task, recalled.png
if it is drawn. So a run that resumes writes them anew from what it resumes from: no step is there twice and none is
missing, even if the end of the last file was lost, or the run began without TensorBoard.
"""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

from PIL import Image
from torch import Tensor

from ..errors import AutorecallError, ConfigError, DataError
from ..recall.batch import Recalled
from ..runs.folder import EVENTS, TENSORBOARD, held, remove_events
from ..runs.history import NAME as HISTORY
from ..runs.loop import Observer
from ..runs.result import Result
from ..storage.files import append_to, make_folder, regular_file

PICTURE = "recalled.png"


class TensorBoard(Observer):
    """Writes what TensorBoard shows, and passes everything on to another observer."""

    def __init__(self, folder: str | Path, observer: Observer | None = None) -> None:
        """`folder` is that of the run. Nothing is written to it before the run does."""
        if find_spec("tensorboard") is None:
            raise ConfigError("the package tensorboard is not installed; use pip install 'autorecall[tensorboard]'")
        self._folder, self._observer = Path(folder), observer or Observer()
        self._file: BinaryIO | None = None
        self._failed = False
        self._step = 0
        self._matrix: list[list[float]] = []

    def resumed(self, step: int, steps: int) -> None:
        """What was written before, once more."""
        self._observer.resumed(step, steps)
        self._add_history()
        self._step = step
        if step == steps:
            self._add_picture()

    def warned(self, sentence: str) -> None:
        """Nothing to show."""
        self._observer.warned(sentence)

    def step(self, step: int, steps: int, task: int, numbers: Mapping[str, float]) -> None:
        """One row of history.csv."""
        self._observer.step(step, steps, task, numbers)
        self._step = step
        self._add_numbers({"task": task} | dict(numbers))

    def tested_before(self, step: int, task: int, accuracies: list[float]) -> None:
        """A row of the matrix."""
        self._observer.tested_before(step, task, accuracies)
        self._add_accuracies(step, accuracies)

    def evaluated(self, task: int, accuracies: list[float]) -> None:
        """A row of the matrix."""
        self._observer.evaluated(task, accuracies)
        self._add_accuracies(self._step, accuracies)

    def recalled(self, x: Tensor, recalled: Recalled, targets: Tensor) -> None:
        """The picture, if the other observer has drawn it."""
        self._observer.recalled(x, recalled, targets)
        self._add_picture()

    def finished(self, result: Result) -> None:
        """Nothing that is not there yet."""
        self._observer.finished(result)

    def complete(self, result: Result) -> None:
        """All of a run that has finished, as event files may end where it was interrupted.

        They are left as they are if history.csv no longer has every step.
        """
        with held(self._folder):
            if any((self._folder / TENSORBOARD).glob(EVENTS)) and not self._has_steps(result.steps):
                return
            ends = self._add_history()
            for task, accuracies in enumerate(result.accuracy_matrix, start=1):
                self._add_accuracies(ends.get(task, result.steps), accuracies)
            self._step = result.steps
            self._add_picture()

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def _history(self) -> Iterator[tuple[int, int, dict[str, float]]]:
        """Step, task and numbers of every row of history.csv, which ends where the run does."""
        place = self._folder / HISTORY
        try:
            with regular_file(place) as file, io.TextIOWrapper(file, encoding="utf-8", newline="") as lines:
                for row in csv.DictReader(lines):
                    step = int(row.pop("step"))
                    yield step, int(row["task"]), {name: float(value) for name, value in row.items() if value}
        except (AutorecallError, ValueError, KeyError, TypeError, csv.Error) as error:  # changed by something else
            raise DataError(f"{place} is not the history of a run ({error})") from error

    def _has_steps(self, steps: int) -> bool:
        """Whether history.csv has every step of a run; if not, say so."""
        try:
            found = sum(1 for _ in self._history())
            wrong = f"{self._folder / HISTORY} has {found} of {steps} steps" if found != steps else None
        except DataError as error:
            wrong = str(error)
        if wrong is not None:
            self._observer.warned(f"{wrong}; TensorBoard's event files stay as they are")
        return wrong is None

    def _add_history(self) -> dict[int, int]:
        """Add every row of history.csv; return the last step of each task."""
        ends = {}
        try:
            for step, task, numbers in self._history():
                self._step = ends[task] = step
                self._add_numbers(numbers)
        except DataError as error:
            self._warn(str(error))
        return ends

    def _add_numbers(self, numbers: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        shown = {_tag(name): value for name, value in numbers.items() if not math.isnan(value)}
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in shown.items()]
        self._add(self._step, summary=Summary(value=values))

    def _add_accuracies(self, step: int, accuracies: list[float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from torch.utils.tensorboard.summary import text

        self._matrix.append(accuracies)
        known = accuracies[: len(self._matrix)]
        shown = {f"accuracy/task_{task}": value for task, value in enumerate(accuracies, start=1)}
        shown["accuracy/average_of_tasks_so_far"] = math.fsum(known) / len(known)
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in shown.items()]
        self._add(step, summary=Summary(value=values))
        self._add(step, summary=text("accuracy/matrix", _table(self._matrix)))  # type: ignore[no-untyped-call]

    def _add_picture(self) -> None:
        """recalled.png, if it is there: on data of your own it is drawn only if it may be."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        try:
            with regular_file(self._folder / PICTURE) as file:
                content = file.read()
            width, height = Image.open(io.BytesIO(content)).size
        except (AutorecallError, OSError):
            return
        image = Summary.Image(height=height, width=width, colorspace=4, encoded_image_string=content)
        self._add(self._step, summary=Summary(value=[Summary.Value(tag="recalled/images", image=image)]))

    def _add(self, step: int, **content: Any) -> None:
        """One event, flushed at once. The disk may be full: then the run goes on without TensorBoard."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        if self._failed:
            return
        try:
            if self._file is None:
                self._file = self._new_file()
                writer = RecordWriter(self._file)
                writer.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
                # A TensorBoard that has read an earlier file of this run forgets it.
                start = SessionLog(status=SessionLog.START)
                writer.write(Event(wall_time=time.time(), step=0, session_log=start).SerializeToString())
            RecordWriter(self._file).write(Event(wall_time=time.time(), step=step, **content).SerializeToString())
            self._file.flush()
        except (AutorecallError, OSError) as error:
            self._failed = True
            self._warn(f"TensorBoard's event files could not be written ({error})")

    def _new_file(self) -> BinaryIO:
        """A file in place of all that are there."""
        make_folder(self._folder / TENSORBOARD)
        remove_events(self._folder)
        return append_to(self._folder / TENSORBOARD / EVENTS.replace("*", str(time.time_ns())), 0)

    def _warn(self, sentence: str) -> None:
        self._observer.warned(f"{sentence}; the run goes on without them")


def _tag(name: str) -> str:
    """TensorBoard draws what has the same word before the slash together."""
    return (
        name.replace("recalled_class_", "recalled_classes/") if name.startswith("recalled_class_") else f"step/{name}"
    )


def _table(matrix: list[list[float]]) -> str:
    """Accuracies after each task as Markdown."""
    tasks = range(1, len(matrix[0]) + 1)
    lines = ["| | " + " | ".join(f"task {task}" for task in tasks) + " |", "|---" * (len(tasks) + 1) + "|"]
    for number, row in enumerate(matrix, start=1):
        lines.append(f"| after task {number} | " + " | ".join(f"{value:.1f}" for value in row) + " |")
    return "\n".join(lines)
