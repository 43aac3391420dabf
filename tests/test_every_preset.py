"""Every row of every table runs through the whole pipeline, on a stream of two small tasks, without a warning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autorecall import GENConfig, GENMIRConfig, PatchesConfig, ResNet18Config
from autorecall.config import RunConfig
from autorecall.data import Dataset, Split, from_arrays
from autorecall.learners.shared.algorithm1 import RecallConfig
from autorecall.presets import PRESETS
from autorecall.runs.folder import read_config
from autorecall.runs.result import read_result
from autorecall.runs.run import run
from autorecall.stream import StreamConfig


def small(shape: tuple[int, ...], classes: int, each: int) -> Dataset:
    """A few images per class, bright in a place of its own."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), each)
    images = rng.integers(0, 128, (len(labels), *shape), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[:, label, :] = 255
    return from_arrays(train=(images, labels), test=(images, labels))


def quick(config: RunConfig) -> RunConfig:
    """The same method with less to do."""
    short = replace(config, curve_points=0, stream=replace(config.stream, batch_size=3, passes=1))
    if isinstance(short.network, ResNet18Config):
        short = replace(short, network=replace(short.network, channels=8))
    if isinstance(short.network, PatchesConfig):
        short = replace(short, network=replace(short.network, filters=5))
    if isinstance(short.learner, GENConfig):  # or it takes half a minute
        short = replace(short, learner=replace(short.learner, groups=2, steps_per_batch=2, image_size=None))
    if isinstance(short.learner, RecallConfig):
        fewer = min(short.learner.recalled_images, 12), min(short.learner.ascent_steps, 2)
        short = replace(short, learner=replace(short.learner, recalled_images=fewer[0], ascent_steps=fewer[1]))
    if isinstance(short.learner, GENMIRConfig):
        short = replace(short, learner=replace(short.learner, ascent_steps=1))
    return short


# What the methods of the paper's tables keep, and ours; a new one may keep anything.
KEPT: dict[str, frozenset[str]] = {
    "naive": frozenset(),
    **dict.fromkeys(("er", "er-mir", "gem", "icarl"), frozenset({"images"})),
    **dict.fromkeys(("lwf", "adi", "arm", "gen", "gen-mir", "slda"), frozenset({"parameters"})),
    **dict.fromkeys(("gaussians", "mean-shift"), frozenset({"statistics"})),
}


@pytest.mark.parametrize("name", PRESETS)
def test_preset_runs(name: str, tmp_path: Path) -> None:
    config = PRESETS[name].config
    classes = 2 * config.stream.classes_per_task
    shape = (1, 28, 28) if config.dataset == "mnist" else (3, 16, 16)
    dataset = small(shape, classes, each=12 // classes)
    short = quick(config)
    result = run(name, short, dataset, tmp_path / "run")
    tasks = 1 if config.stream.stationary else 2
    assert len(result.accuracy_matrix) == tasks
    assert (result.forgetting is None) == (tasks == 1)
    assert read_result(tmp_path / "run" / "result.json") == result
    assert read_config(tmp_path / "run" / "config.json") == (name, replace(short, dataset="arrays"))
    rows = (tmp_path / "run" / "history.csv").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 1 + result.steps
    kept = frozenset(what for what in ("images", "statistics", "parameters") if getattr(result.memory, what))
    expected = frozenset() if "unit-lag" in name else KEPT.get(config.learner.method, kept)
    assert kept == expected


METHODS = {row.config.learner.method: name for name, row in reversed(PRESETS.items())}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_tasks_of_one_class_classes_that_return_and_one_of_three_images(method: str) -> None:
    """The first of four classes has three images, as few as there are tasks with it."""
    config = quick(PRESETS[METHODS[method]].config)
    shape = (1, 28, 28) if config.dataset == "mnist" else (3, 16, 16)
    whole = small(shape, 4, each=6)
    few = Split(whole.train.inputs[3:], whole.train.labels[3:])
    dataset = replace(whole, train=few, classes=("cat", "dog", "owl", "cow"))
    order = ("cat", "dog", "cat", "owl", "cow", "cat")
    chosen = StreamConfig(order=order, tasks=(1, 1, 3, 1), batch_size=2, order_seed=0)
    result = run("own/data", replace(config, stream=chosen, threads=1), dataset)
    assert result.tasks == [["cat"], ["dog"], ["cat", "owl", "cow"], ["cat"]]
    assert result.steps == 1 + 3 + 7 + 1
