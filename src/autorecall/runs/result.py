"""What a run found: the fields of result.json, or of stopped.json if it diverged."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from ..checks import LARGEST_SEED, brief
from ..data import Dataset
from ..errors import DataError
from ..storage.files import read_json
from ..storage.formats import stamped, unstamped
from ..storage.schema import decode

SINCE_FORMAT_3 = ("lessons", "tested")  # fields of a result that were added since
MOST = 10**15  # of anything that is counted or measured


@dataclass
class Seconds:
    """Where the time went."""

    train: float = 0.0
    evaluate: float = 0.0


@dataclass(frozen=True)
class MemoryCount:
    """What the learner kept besides its network, counted as in the paper: 1 MB is 10⁶ bytes."""

    images: int
    image_mb: float
    parameters: int
    parameter_mb: float
    statistics: int = 0
    """Means, covariances, filters and the like; earlier results count those of slda as parameters."""
    statistic_mb: float = 0.0

    @property
    def numbers(self) -> int:
        """Parameters and statistics."""
        return self.parameters + self.statistics

    @property
    def number_mb(self) -> float:
        """What they take."""
        return self.parameter_mb + self.statistic_mb

    @property
    def bytes(self) -> int:
        """Of everything."""
        return round(1e6 * (self.image_mb + self.number_mb))


@dataclass(frozen=True)
class Point:
    """A point of the curve of accuracy."""

    step: int
    accuracies: list[float]
    """The accuracy on every task, in percent."""


@dataclass(frozen=True)
class Lesson:
    """Data that were learned, and how they were read, so that they are known again."""

    data: str
    """Their fingerprint."""
    test_share: float | None = None
    val_share: float | None = None
    skip_broken: bool = False

    @classmethod
    def of(cls, dataset: Dataset) -> Lesson:
        """What is to be learned of a dataset."""
        return cls(dataset.fingerprint(), *dataset.shares, skip_broken=bool(dataset.left_out))


@dataclass(frozen=True)
class Result:
    """What a run found; `result.json` holds these fields."""

    preset: str
    seed: int
    split: Literal["test", "val"]
    accuracy: float
    forgetting: float | None
    accuracy_matrix: list[list[float]]
    memory: MemoryCount
    steps: int
    seconds: Seconds
    versions: dict[str, str]
    machine: dict[str, str]
    data: str = ""
    """The fingerprint of the data; the earliest results have none."""
    curve: list[Point] = field(default_factory=list)
    """Accuracy over training: of all test images at the end of a task, of a part of them in between."""
    parent: str = ""
    """The folder of the run that this one went on from, if any."""
    lessons: list[Lesson] = field(default_factory=list)
    """Of a run that went on from another: all that was learned before it and by it, the first day first; of a first
    day, only if its config does not say how the data were read."""
    tested: str = ""
    """Of a run that went on from another, the fingerprint of all that was tested."""
    tasks: list[list[str]] = field(default_factory=list)
    """The names of each task's classes; earlier results have none."""
    left_out: int = 0
    """Images that could not be read, with skip_broken."""

    def __post_init__(self) -> None:
        if not self.accuracy_matrix or any(len(row) != len(self.accuracy_matrix) for row in self.accuracy_matrix):
            raise DataError("result.accuracy_matrix is not square; expected a row and a column for every task")
        if self.tasks and len(self.tasks) != len(self.accuracy_matrix):
            raise DataError(f"result.tasks has {len(self.tasks)} tasks; expected {len(self.accuracy_matrix)}")
        if not all(self.tasks):
            raise DataError("result.tasks has a task without classes; expected the name of one at least")


@dataclass(frozen=True)
class Diverged:
    """Why a run ended early; `stopped.json` holds these fields."""

    preset: str
    seed: int
    step: int
    task: int
    term: str
    value: str


def as_json(found: Result | Diverged) -> dict[str, object]:
    """The content of the file, which earlier versions can read unless it says what they did not know of."""
    return stamped({name: value for name, value in asdict(found).items() if value or name not in SINCE_FORMAT_3})


def read_result(path: Path) -> Result:
    """A result.json, checked field by field."""
    result = decode(Result, unstamped(read_json(path))[1], "result")
    assert isinstance(result, Result)
    _check_figures(result)
    return result


def read_stopped(path: Path) -> Diverged:
    """A stopped.json, checked field by field."""
    stopped = decode(Diverged, unstamped(read_json(path))[1], "stopped")
    assert isinstance(stopped, Diverged)
    return stopped


def _check_figures(result: Result) -> None:
    """Refuse figures that no run can have, as they would spoil those of others in one table."""
    memory, seconds = result.memory, result.seconds
    for name, value, least, most in (
        ("seed", result.seed, 0, LARGEST_SEED),
        ("accuracy", result.accuracy, 0, 100),
        ("forgetting", result.forgetting, -100, 100),
        *(
            (f"accuracy_matrix[{i}][{j}]", accuracy, 0, 100)
            for i, row in enumerate(result.accuracy_matrix)
            for j, accuracy in enumerate(row)
        ),
        *(
            (f"curve[{i}].accuracies[{j}]", accuracy, 0, 100)
            for i, point in enumerate(result.curve)
            for j, accuracy in enumerate(point.accuracies)
        ),
        ("memory.images", memory.images, 0, MOST),
        ("memory.image_mb", memory.image_mb, 0, MOST),
        ("memory.parameters", memory.parameters, 0, MOST),
        ("memory.parameter_mb", memory.parameter_mb, 0, MOST),
        ("memory.statistics", memory.statistics, 0, MOST),
        ("memory.statistic_mb", memory.statistic_mb, 0, MOST),
        ("steps", result.steps, 0, MOST),
        ("left_out", result.left_out, 0, MOST),
        ("seconds.train", seconds.train, 0, MOST),
        ("seconds.evaluate", seconds.evaluate, 0, MOST),
    ):
        if value is not None and not least <= value <= most:
            raise DataError(f"result.{name} is {brief(value)}; expected {least} to {most}")
    check_curve(result.curve, result.steps, len(result.accuracy_matrix))
    threads = result.machine.get("threads", "")
    if threads.isdecimal() and len(threads) > 9:
        raise DataError(f"result.machine.threads is {brief(threads)}; expected a number of threads")


def check_curve(curve: list[Point], steps: int, tasks: int) -> None:
    """Refuse a curve that no run can have drawn."""
    at = [point.step for point in curve]
    if at != sorted(set(at)) or any(not 0 <= step <= steps for step in at):
        raise DataError(f"result.curve is at steps {brief(at)}; expected rising numbers from 0 to {steps}")
    if any(len(point.accuracies) != tasks for point in curve):
        raise DataError(f"result.curve has a point without one accuracy for each of {tasks} tasks")
