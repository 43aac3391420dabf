"""Methods of our own on streams of any kind: whatever the order and the tasks, every class is known at the end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from autorecall import Learner, StreamConfig
from autorecall.config import RunConfig
from autorecall.data import Dataset, from_arrays
from autorecall.presets import PRESETS
from autorecall.stream import Stream, as_batch

SIDE = 12
COUNTS = (30, 20, 1, 30, 20)  # images of each class

STREAMS = {
    "in order": StreamConfig(2),
    "backwards": StreamConfig(2, class_order=(4, 3, 2, 1, 0)),
    "any order": StreamConfig(2, class_order=(3, 0, 4, 2, 1)),
    "uneven tasks": StreamConfig(tasks=(3, 1, 1)),
    "one class per task": StreamConfig(1),
    "classes that return": StreamConfig(tasks=(2, 2, 3), class_order=(0, 1, 2, 3, 0, 4, 3)),
    "no tasks": StreamConfig(stationary=True),
    "the single image first": StreamConfig(1, class_order=(2, 0, 1, 3, 4)),
}


@pytest.fixture(scope="module")
def data() -> Dataset:
    """Faint noise, with a bright band that is elsewhere in each class."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(len(COUNTS)), COUNTS)
    images = rng.integers(0, 60, (len(labels), 1, SIDE, SIDE), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[:, 2 * label : 2 * label + 3, :] += 180
    return from_arrays(train=(images, labels), test=(images, labels))


def config_of(method: str) -> RunConfig:
    """The preset, with fewer filters and features that the first batch sets: then no image is lost."""
    config = PRESETS[f"mnist/{method}"].config
    small = {"patches": {"filters": 6, "size": 4}, "gaussians": {"pixels": 4, "edges": 2, "hidden": (20,)}}
    if method in small:
        config = replace(config, network=replace(config.network, first_images=1, **small[method]))  # type: ignore[arg-type, call-arg]
    return config


def learned(config: RunConfig, data: Dataset, stream: StreamConfig) -> Learner:
    torch.manual_seed(0)
    learner = config.learner.build(config.network.build(data.input_shape, len(COUNTS)), seed=0)
    for task in Stream(data, stream):
        for x, y in task:
            learner.observe(x, y)
    return learner


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("method", ["mean-shift", "gaussians", "patches"])
def test_every_class_is_known_at_the_end(method: str, kind: str, data: Dataset) -> None:
    learner = learned(config_of(method), data, STREAMS[kind])
    x, y = as_batch(data.train, slice(None))
    found = learner.predict(x).argmax(1)
    common = y != 2  # a single image cannot be told from noise by all of them
    assert (found == y)[common].double().mean() > 0.9
    if method != "mean-shift":
        assert bool((found == y)[~common].all())
