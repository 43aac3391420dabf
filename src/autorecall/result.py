"""What a run found: the fields of result.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .errors import DataError
from .files import read_json
from .schema import decode


@dataclass
class Seconds:
    """Where the time went."""

    train: float = 0.0
    evaluate: float = 0.0


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
