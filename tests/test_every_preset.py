"""Every row of every table runs through the whole pipeline, on a stream of two small tasks, without a warning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autorecall import GENConfig, GENMIRConfig, PatchesConfig, ResNet18Config
from autorecall.data import Dataset, from_arrays
from autorecall.presets import PRESETS
from autorecall.runs.folder import read_config
from autorecall.runs.result import read_result
from autorecall.runs.run import run


def small(shape: tuple[int, ...], classes: int, each: int) -> Dataset:
    """A few images per class, bright in a place of its own."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), each)
    images = rng.integers(0, 128, (len(labels), *shape), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[:, label, :] = 255
    return from_arrays(train=(images, labels), test=(images, labels))


@pytest.mark.parametrize("name", PRESETS)
def test_preset_runs(name: str, tmp_path: Path) -> None:
    config = PRESETS[name].config
    classes = 2 * config.stream.classes_per_task
    shape = (1, 28, 28) if config.dataset == "mnist" else (3, 16, 16)
    dataset = small(shape, classes, each=12 // classes)
    short = replace(config, stream=replace(config.stream, batch_size=3, passes=1))
    if isinstance(short.network, ResNet18Config):
        short = replace(short, network=replace(short.network, channels=4))
    if isinstance(short.network, PatchesConfig):
        short = replace(short, network=replace(short.network, filters=5))
    if isinstance(short.learner, GENConfig):  # or it takes half a minute
        short = replace(short, learner=replace(short.learner, groups=2, steps_per_batch=2, image_size=None))
    if isinstance(short.learner, GENMIRConfig):
        short = replace(short, learner=replace(short.learner, ascent_steps=1))
    result = run(name, short, dataset, tmp_path / "run")
    tasks = 1 if config.stream.stationary else 2
    assert len(result.accuracy_matrix) == tasks
    assert (result.forgetting is None) == (tasks == 1)
    assert read_result(tmp_path / "run" / "result.json") == result
    assert read_config(tmp_path / "run" / "config.json") == (name, replace(short, dataset="arrays"))
    rows = (tmp_path / "run" / "history.csv").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 1 + result.steps
    kept = result.memory
    assert (kept.images > 0) == name.split("/")[1].startswith(("er", "gem", "icarl"))
    assert (kept.statistics > 0) == name.endswith(("/gaussians", "/patches"))
    taught = name.split("/")[1].startswith(("lwf", "adi", "arm", "ablation", "gen", "slda"))
    assert (kept.parameters > 0) == (taught and "unit-lag" not in name)
