"""result.json and stopped.json come back as they were written, or are refused field by field."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autorecall.errors import AutorecallError, DataError
from autorecall.runs.result import (
    Diverged,
    Lesson,
    MemoryCount,
    Point,
    Result,
    Seconds,
    as_json,
    read_result,
    read_stopped,
)
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
    curve=[Point(0, [0.0, 0.0]), Point(4, [90.0, 0.0]), Point(8, [20.0, 80.0])],
)
DIVERGED = Diverged("own/bars", seed=3, step=5, task=2, term="the loss", value="nan")


def test_a_result_comes_back(tmp_path: Path) -> None:
    write_json(tmp_path / "result.json", as_json(RESULT))
    assert read_result(tmp_path / "result.json") == RESULT
    learned = replace(RESULT, parent="monday", lessons=[Lesson("abc", 0.5), Lesson("def")], tested="ghi")
    write_json(tmp_path / "result.json", as_json(learned))
    assert read_result(tmp_path / "result.json") == learned


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
        ("curve", None),
        ("curve", [1.0, 2.0]),
        ("curve", [{"step": 1}]),
        ("curve", [{"step": 1.5, "accuracies": [1.0, 2.0]}]),
        ("curve", [{"step": 1, "accuracies": ["1", 2.0]}]),
        ("curve", [{"step": 1, "accuracies": [1.0, 2.0], "extra": 1}]),
        ("extra", 1),
    ],
)
def test_a_result_with_a_wrong_field_is_refused_by_its_name(tmp_path: Path, field: str, value: object) -> None:
    write_json(tmp_path / "result.json", as_json(RESULT) | {field: value})
    with pytest.raises(AutorecallError, match=rf"^result\.{field}"):
        read_result(tmp_path / "result.json")


MEMORY = {"images": 2, "image_mb": 0.5, "parameters": 10, "parameter_mb": 0.00004}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", -1),
        ("seed", 10**30),
        ("split", "\x1b[2J"),
        ("split", "train"),
        ("accuracy", -0.1),
        ("accuracy", 100.1),
        ("accuracy", 1e300),
        ("forgetting", -100.1),
        ("forgetting", 101.0),
        ("accuracy_matrix", [[1.0, 2.0], [3.0, 100.5]]),
        ("accuracy_matrix", [[1.0, 2.0], [-3.0, 4.0]]),
        ("accuracy_matrix", [[1.0, 2.0], [3.0]]),
        ("accuracy_matrix", [[]]),
        ("memory.images", -1),
        ("memory.images", 10**400),
        ("memory.image_mb", -0.5),
        ("memory.image_mb", 1e300),
        ("memory.parameters", -1),
        ("memory.parameter_mb", -1.0),
        ("memory.statistics", -1),
        ("memory.statistic_mb", 1e300),
        ("steps", -1),
        ("steps", 10**30),
        ("seconds.train", -1.0),
        ("seconds.evaluate", 1e300),
        ("machine.threads", "9" * 5000),
    ],
)
def test_a_figure_that_cannot_be_is_refused_by_its_name(tmp_path: Path, name: str, value: object) -> None:
    part, _, inner = name.partition(".")
    values = as_json(RESULT)
    seconds = {"train": 1.0, "evaluate": 2.0}
    parts: dict[str, dict[str, object]] = {"memory": {**MEMORY}, "seconds": {**seconds}, "machine": {}}
    write_json(tmp_path / "result.json", values | {part: parts[part] | {inner: value} if inner else value})
    with pytest.raises(AutorecallError, match=rf"^result\.{name}(\[1\]\[[01]\])? is .*; expected ") as caught:
        read_result(tmp_path / "result.json")
    assert len(str(caught.value)) < 300


def points(*steps: int) -> list[dict[str, object]]:
    return [{"step": step, "accuracies": [1.0, 2.0]} for step in steps]


@pytest.mark.parametrize(
    ("curve", "sentence"),
    [
        (points(4, 3), r"result\.curve is at steps \[4, 3\]; expected rising numbers from 0 to 8"),
        (points(4, 4), r"result\.curve is at steps \[4, 4\]; expected rising"),
        (points(-1, 4), r"result\.curve is at steps \[-1, 4\]; expected rising"),
        (points(4, 9), r"result\.curve is at steps \[4, 9\]; expected rising"),
        (points(*range(8, -1, -1)) * 1000, r"result\.curve is at steps .*; expected rising"),
        ([{"step": 4, "accuracies": [1.0]}], r"result\.curve has a point without one accuracy for each of 2 tasks"),
        ([{"step": 4, "accuracies": [1.0] * 3}], r"result\.curve has a point without one accuracy for each of 2"),
        ([{"step": 4, "accuracies": []}], r"result\.curve has a point without one accuracy for each of 2"),
        (
            [{"step": 4, "accuracies": [1.0, 100.5]}],
            r"result\.curve\[0\]\.accuracies\[1\] is 100\.5; expected 0 to 100",
        ),
        (
            [*points(0), {"step": 4, "accuracies": [-1.0, 2.0]}],
            r"result\.curve\[1\]\.accuracies\[0\] is -1\.0; expected",
        ),
    ],
)
def test_a_curve_that_no_run_can_have_drawn_is_refused(tmp_path: Path, curve: list[object], sentence: str) -> None:
    write_json(tmp_path / "result.json", as_json(RESULT) | {"curve": curve})
    with pytest.raises(DataError, match=f"^{sentence}") as caught:
        read_result(tmp_path / "result.json")
    assert len(str(caught.value)) < 300


def test_a_result_of_a_version_without_statistics_is_read(tmp_path: Path) -> None:
    write_json(tmp_path / "result.json", as_json(RESULT) | {"memory": MEMORY})
    memory = read_result(tmp_path / "result.json").memory
    assert (memory.statistics, memory.statistic_mb) == (0, 0.0)
    assert (memory.numbers, memory.number_mb) == (10, 0.00004)
    counted = MemoryCount(0, 0.0, 10, 0.00004, 5, 0.00002)
    assert counted.numbers == 15
    assert counted.number_mb == pytest.approx(0.00006)


def test_a_result_of_a_version_without_curves_is_read(tmp_path: Path) -> None:
    values = as_json(RESULT)
    del values["curve"]
    write_json(tmp_path / "result.json", values)
    assert read_result(tmp_path / "result.json").curve == []


@pytest.mark.parametrize(
    ("accuracy", "lost"), [(0.0, -100.0), (100.0, 100.0), (0, None)], ids=["least", "most", "whole"]
)
def test_the_extremes_are_read(tmp_path: Path, accuracy: float, lost: float | None) -> None:
    write_json(tmp_path / "result.json", as_json(RESULT) | {"accuracy": accuracy, "forgetting": lost, "steps": 10**15})
    assert read_result(tmp_path / "result.json").accuracy == accuracy


@pytest.mark.parametrize("found", [RESULT, DIVERGED], ids=["result", "stopped"])
def test_what_a_newer_version_wrote_is_refused(tmp_path: Path, found: Result | Diverged) -> None:
    write_json(tmp_path / "file.json", as_json(found) | {"format": FORMAT + 1})
    read = read_result if isinstance(found, Result) else read_stopped
    with pytest.raises(DataError, match=rf"^its format is {FORMAT + 1}, from a newer autorecall"):
        read(tmp_path / "file.json")
