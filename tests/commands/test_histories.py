"""Histories in few points: the means of stretches, against the plain way to compute them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from autorecall.commands import histories
from autorecall.commands.histories import read_means
from autorecall.errors import DataError


def write(folder: Path, steps: int) -> list[list[float]]:
    """Random numbers, some of them missing; nothing is recalled in the first task."""
    random = np.random.default_rng(0)
    rows = [[random.normal(), math.nan if step <= 60 else random.random()] for step in range(1, steps + 1)]
    lines = [
        f"{step},{1 + (step > 60)},{row[0]!r},{'' if step <= 60 else repr(row[1])}" for step, row in enumerate(rows, 1)
    ]
    (folder / "history.csv").write_text("\n".join(["step,task,loss,recalled_class_0", *lines]) + "\n")
    return rows


@pytest.mark.parametrize(("steps", "points"), [(100, 7), (100, 100), (100, 500), (97, 10)])
def test_a_point_is_the_mean_of_its_stretch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, points: int
) -> None:
    monkeypatch.setattr(histories, "BLOCK", 13)
    rows = write(tmp_path, steps)
    found = read_means(tmp_path, steps, points)
    few = min(points, steps)
    stretches: list[list[int]] = [[] for _ in range(few)]
    for step in range(1, steps + 1):
        stretches[(step - 1) * few // steps].append(step)
    assert found.ends == [stretch[-1] for stretch in stretches]
    for column, name in enumerate(("loss", "recalled_class_0")):
        for stretch, mean in zip(stretches, found.columns[name], strict=True):
            known = [rows[step - 1][column] for step in stretch if not math.isnan(rows[step - 1][column])]
            assert mean == pytest.approx(sum(known) / len(known)) if known else math.isnan(mean)
    assert found.task_ends == [60, steps]
    shares = found.recalled_classes()
    assert shares is not None
    assert shares.shape == (few, 1)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "loss\n1\n",
        "step,step\n1,1\n",
        "step,loss\n1\n",
        "step,loss\n1,x\n",
        "step,loss\n11,1\n",
        "step,loss\n0,1\n",
        "step,loss\n,1\n",
        'step,loss\n1,"\n',
        "step,loss\n\xff,1\n",
    ],
)
def test_what_is_no_history_of_the_run_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "history.csv").write_bytes(content.encode("latin-1"))
    with pytest.raises(DataError, match=r"history\.csv is damaged, or not of this run \("):
        read_means(tmp_path, 10, 5)


def test_numbers_that_are_not_finite_are_no_numbers(tmp_path: Path) -> None:
    (tmp_path / "history.csv").write_text("step,loss\n1,inf\n2,1e999\n3,nan\n4,2\n")
    found = read_means(tmp_path, 4, 2).columns["loss"]
    assert math.isnan(found[0])
    assert found[1] == 2


def test_a_pipe_is_not_waited_for_and_a_huge_file_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 70)
    monkeypatch.setattr(histories, "LARGEST", 100)
    with pytest.raises(DataError, match="it is larger than"):
        read_means(tmp_path, 70, 5)
