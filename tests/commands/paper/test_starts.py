"""The study of what recall starts from, written from runs whose figures are known."""

from __future__ import annotations

import csv
from pathlib import Path

from autorecall import ARMConfig, MeanShiftConfig
from autorecall.commands.paper import STUDIES
from autorecall.commands.paper.study import Place

from .worlds import write_rows

STUDY = STUDIES["recall-starts"]


def test_rows_differ_in_start_target_and_distillation_alone() -> None:
    rows = [row for row in STUDY.rows(5, 1.0) if row.preset == "mnist/arm"]
    found = set()
    for row in rows:
        learner = row.config.learner
        assert isinstance(learner, ARMConfig)
        found.add((learner.initial, learner.told, learner.targets, learner.real_weight))
        assert (learner.recalled_images, learner.learning_rate, learner.ascent_steps) == (10, 0.05, 10)
    assert len(found) == len(rows) == 11
    assert ("real", False, "soft", 1.0) in found  # ARM itself


def test_mean_shift_is_run_at_the_settings_of_arm_and_at_its_own() -> None:
    learners = [row.config.learner for row in STUDY.rows(5, 1.0) if row.preset == "mnist/mean-shift"]
    assert learners == [MeanShiftConfig(learning_rate=0.05, recalled_images=10), MeanShiftConfig()]


def test_natural_images_are_a_tenth_of_the_stream_on_three_seeds_with_few_images() -> None:
    rows = [row for row in STUDY.rows(5, 1.0) if row.config.dataset == "cifar10"]
    assert {(row.config.fraction, row.seeds) for row in rows} == {(0.1, 3)}
    learners = [row.config.learner for row in rows]
    assert {learner.recalled_images for learner in learners if isinstance(learner, ARMConfig)} == {10}


def test_each_dataset_with_runs_has_a_table(tmp_path: Path) -> None:
    assert STUDY.write(Place(tmp_path), 2, 1.0) == []
    rows = [row for row in STUDY.rows(2, 1.0) if row.config.dataset == "mnist"]
    write_rows(tmp_path, rows, [[10.0 + number, 12.0 + number] for number in range(len(rows))])
    written = STUDY.write(Place(tmp_path), 2, 1.0)
    assert {path.name for path in written} == {f"recall-starts-mnist.{kind}" for kind in ("md", "tex", "csv")}
    with (tmp_path / "paper" / "recall-starts-mnist.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [float(line["accuracy"]) for line in lines] == [11.0 + number for number in range(13)]
    assert [line["seeds"] for line in lines] == ["2"] * 13
    first, last = list(lines[0].values())[:5], list(lines[-1].values())[:5]
    assert first == ["real images", "as published", "the teacher's answer", "1", "ARM"]
    assert last == ["shifted images", "none", "the class told", "no", "mean shift"]
    assert sum(line[""] != "" for line in lines) == 2
