"""Runs on fixed features: killed while the first images set them, or later, they end as if nothing had happened."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from autorecall import DescriptorConfig, Gaussians, GaussiansConfig, NaiveConfig, PatchesConfig, run
from autorecall.config import RunConfig
from autorecall.data import Dataset
from autorecall.runs.model import load_model
from autorecall.runs.result import read_result

from .worlds import STEPS, config, contents, interrupt

DESCRIPTOR = DescriptorConfig(pixels=4, edges=2, map_size=4, hidden=(8,), first_images=25)
PATCHES = PatchesConfig(filters=4, size=3, first_images=25)
CASES = {
    "closed form": config(GaussiansConfig(), network=PATCHES),
    "samples": config(GaussiansConfig(samples=8), network=DESCRIPTOR),
    "naive": config(NaiveConfig(0.1), network=PATCHES),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_run_that_was_killed_ends_as_if_it_had_not_been(data: Dataset, tmp_path: Path, case: RunConfig) -> None:
    run("own/bars", case, data, tmp_path / "whole", keep_learner=True)
    for step in (1, 3, 6):
        interrupt(case, data, tmp_path / f"{step}", step)
        run("own/bars", case, data, tmp_path / f"{step}", keep_learner=True)
        assert contents(tmp_path / f"{step}") == contents(tmp_path / "whole")


@pytest.mark.parametrize("most", [0, 10**6])
@pytest.mark.parametrize("case", ["closed form", "samples"])
def test_settled_features_of_tested_images_are_made_once_if_there_is_room(
    data: Dataset, tmp_path: Path, case: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The features settle in the first of two tasks, and each task ends with a test."""
    asked, chosen = list[int](), replace(CASES[case], curve_points=0)
    usual = Gaussians.settled_features

    def noted(learner: Gaussians, x: Tensor) -> Tensor | None:
        asked.append(len(x))
        return usual(learner, x)

    with monkeypatch.context() as patched:
        patched.setattr(Gaussians, "settled_features", lambda _, x: None)
        expected = run("own/bars", chosen, data, tmp_path / "again")
    monkeypatch.setattr(Gaussians, "settled_features", noted)
    monkeypatch.setattr("autorecall.runs.loop.KEPT_FEATURES", most)
    found = run("own/bars", chosen, data, tmp_path / "kept")
    assert found.accuracy_matrix == expected.accuracy_matrix
    assert sum(asked) == len(data.test) * (1 if most else 2)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_run_leaves_its_model_and_counts_what_it_kept(data: Dataset, tmp_path: Path, case: RunConfig) -> None:
    result = run("own/bars", case, data, tmp_path / "run")
    found = load_model(tmp_path / "run")
    x = torch.from_numpy(data.test.inputs).float() / 255
    with torch.no_grad():
        right = (found(x).argmax(1).numpy() == data.test.labels).mean()
    assert 100 * right == pytest.approx(result.accuracy, abs=1e-4)  # as many test images of each class
    memory = read_result(tmp_path / "run" / "result.json").memory
    assert memory == result.memory
    assert memory.statistics > 0
    assert memory.statistic_mb == pytest.approx(4e-6 * memory.statistics)
    assert result.steps == STEPS
