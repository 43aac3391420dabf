"""result.json and stopped.json come back as they were written, or are refused field by field."""

from __future__ import annotations

from pathlib import Path

import pytest

from autorecall.errors import AutorecallError, DataError
from autorecall.runs.result import Diverged, MemoryCount, Result, Seconds, as_json, read_result, read_stopped
from autorecall.storage.files import write_json
from autorecall.storage.formats import FORMAT

RESULT = Result(
    preset="own/bars",
    seed=3,
    split="val",
    accuracy=50.0,
    forgetting=None,
    accuracy_matrix=[[90.0, 0.0], [20.0, 80.0]],
    memory=MemoryCount(images=2, image_mb=0.5, parameters=10, parameter_mb=0.00004),
    steps=8,
    seconds=Seconds(1.0, 2.0),
    versions={"torch": "1.0"},
    machine={"device": "cpu"},
    data="abc",
)
DIVERGED = Diverged("own/bars", seed=3, step=5, task=2, term="the loss", value="nan")


def test_a_result_comes_back(tmp_path: Path) -> None:
    write_json(tmp_path / "result.json", as_json(RESULT))
    assert read_result(tmp_path / "result.json") == RESULT


def test_why_a_run_diverged_comes_back(tmp_path: Path) -> None:
    write_json(tmp_path / "stopped.json", as_json(DIVERGED))
    assert read_stopped(tmp_path / "stopped.json") == DIVERGED


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("accuracy", "56"),
        ("accuracy", None),
        ("accuracy", 10**400),
        ("accuracy_matrix", []),
        ("accuracy_matrix", [[1.0], 2.0]),
        ("accuracy_matrix", [[1.0], [2.0]]),
        ("memory", None),
        ("memory", {}),
        ("memory", {"images": "0"}),
        ("seed", 1.0),
        ("preset", None),
        ("extra", 1),
    ],
)
def test_a_result_with_a_wrong_field_is_refused_by_its_name(tmp_path: Path, field: str, value: object) -> None:
    write_json(tmp_path / "result.json", as_json(RESULT) | {field: value})
    with pytest.raises(AutorecallError, match=rf"^result\.{field}"):
        read_result(tmp_path / "result.json")


@pytest.mark.parametrize("found", [RESULT, DIVERGED], ids=["result", "stopped"])
def test_what_a_newer_version_wrote_is_refused(tmp_path: Path, found: Result | Diverged) -> None:
    write_json(tmp_path / "file.json", as_json(found) | {"format": FORMAT + 1})
    read = read_result if isinstance(found, Result) else read_stopped
    with pytest.raises(DataError, match=rf"^its format is {FORMAT + 1}, from a newer autorecall"):
        read(tmp_path / "file.json")
