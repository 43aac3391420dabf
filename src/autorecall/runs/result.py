"""What a run found: the fields of result.json, or of stopped.json if it diverged."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from ..errors import DataError
from ..storage.files import read_json
from ..storage.formats import stamped, unstamped
from ..storage.schema import decode


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
    """The fingerprint of the data; the earliest results have none."""

    def __post_init__(self) -> None:
        if not self.accuracy_matrix or any(len(row) != len(self.accuracy_matrix) for row in self.accuracy_matrix):
            raise DataError("result.accuracy_matrix is not square; expected a row and a column for every task")


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
    """The content of the file."""
    return stamped(asdict(found))


def read_result(path: Path) -> Result:
    """A result.json, checked field by field."""
    result = decode(Result, unstamped(read_json(path))[1], "result")
    assert isinstance(result, Result)
    return result


def read_stopped(path: Path) -> Diverged:
    """A stopped.json, checked field by field."""
    stopped = decode(Diverged, unstamped(read_json(path))[1], "stopped")
    assert isinstance(stopped, Diverged)
    return stopped
