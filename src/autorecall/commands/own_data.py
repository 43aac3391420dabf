"""Data of one's own: what `--data` means without `--dataset`, and what is run on them if no preset is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import nn

from ..config import RunConfig
from ..data import Dataset, named_in
from ..data.arrays import Labels
from ..data.folders import has_classes
from ..data.locate import disk_errors, shown
from ..errors import ConfigError
from ..learners.gaussians import GaussiansConfig
from ..networks import PatchesConfig
from ..networks.descriptor import Frequencies
from ..networks.fixed import FixedFeatures
from ..stream import Stream

COLOUR, GREY = "cifar10/patches", "mnist/patches"
WHY = "the most accurate here that keeps no image"
LOST = 0.1  # the largest part of a class that may go into filters instead of what is learned
# Chosen on validation images of CIFAR10 and MNIST-5k, 5 to 300 per class: docs/how-to.md has figures.
RIDGE_PER_FEATURE = 0.1


def dataset_meant(place: str, preset: str | None, decided: bool = False) -> str | None:
    """The dataset that `--data` means by itself; None if it is `decided` by a config, or by a preset."""
    path = Path(place)
    if path.suffix.lower() == ".npz":
        return "npz"
    if decided:
        return None
    with disk_errors():
        named = named_in(path) if path.is_dir() else ()
        if preset is not None:
            own = path.is_dir() and not named and has_classes(path) and not preset.startswith("miniimagenet/")
            return "folder" if own else None
    if named:
        raise ConfigError(
            f"{shown(place)} has {' and '.join(named)}, and no preset is named; name one, such as cifar10/patches, "
            "or add --dataset folder if its sub-folders are classes"
        )
    return "folder"


def best_preset(dataset: Dataset) -> str:
    """The preset to take for these data."""
    shape = dataset.input_shape
    if len(shape) != 3:
        raise ConfigError(
            f"the inputs have shape {shape} and no preset is named, but the best method is for images (channels, "
            "height, width); name a preset for inputs of any shape, such as mnist/slda"
        )
    return GREY if shape[0] == 1 else COLOUR


def fitted(given: RunConfig, dataset: Dataset) -> RunConfig:
    """A run of patch filters with what depends on the data: their number, size and order."""
    network, learner = given.network, given.learner
    assert isinstance(network, PatchesConfig)
    assert isinstance(learner, GaussiansConfig)
    tasks = replace(given.stream, classes_per_task=min(given.stream.classes_per_task, len(dataset.classes)))
    stream = Stream(dataset, tasks, given.fraction, given.seed)
    network = _for_size(network, dataset.input_shape)
    network = replace(network, first_images=images_for_filters(stream, network.first_images))
    ridge = _ridge(network, dataset, sum(len(task.order) for task in stream))
    described = _described(network, dataset.input_shape)
    learner = replace(learner, ridge=max(learner.ridge, ridge), own_features=described)
    if described is None:  # covariances of all features would be too many numbers
        learner = replace(learner, weight=0.0)
    elif learner.weight:
        learner = replace(learner, floor=max(learner.floor, ridge))
    # Tests over training would take longer than to learn.
    return replace(given, network=network, learner=learner, stream=tasks, curve_points=0)


def why_best(preset: str, due: Mapping[str, object], dataset: Dataset) -> str:
    """What is taken, why, and which of its settings are due to the data."""
    settings = ", ".join(f"{name.rsplit('.', 1)[-1]} {value}" for name, value in due.items())
    which = f" ({settings} for {len(dataset.train):,} images)" if settings else ""
    return f"no preset given: taking {preset}, {WHY}{which}; `autorecall list` names the others"


def images_for_filters(stream: Stream, most: int) -> int:
    """How many of the first images may set filters, `most` at most, so that every class keeps nearly all of its images.

    What was learned before the features settle is void. The batch in which they do is learned as well.
    """
    labels = np.concatenate([task.split.labels[task.order] for task in stream])
    allowed = LOST * np.bincount(labels)
    lost, ready = np.zeros(len(allowed)), 0
    for batch in _batches(stream):
        if ready >= most or (lost > allowed).any():
            break
        ready += len(batch)
        np.add.at(lost, batch, 1)
    return min(ready, most)


def _batches(stream: Stream) -> Iterator[Labels]:
    """The labels of each batch of the first pass of each task."""
    for task in stream:
        labels = task.split.labels[task.order]
        for start in range(0, len(labels), task.batch_size):
            yield labels[start : start + task.batch_size]


def _for_size(network: PatchesConfig, shape: tuple[int, ...]) -> PatchesConfig:
    """Patches that fit into small images."""
    side = min(shape[1:])
    if network.frequencies and side < network.descriptor.map_size:
        network = replace(network, frequencies=0)
    grid = min(network.grid, side)
    return replace(network, grid=grid, size=min(network.size, side - grid + 1))


def _described(network: PatchesConfig, shape: tuple[int, ...]) -> int | None:
    """How many features are of the descriptor, if it is used."""
    if not network.frequencies:
        return None
    channels, height, width = shape
    return Frequencies((channels, height, width), network.descriptor).count


def _ridge(network: PatchesConfig, dataset: Dataset, images: int) -> float:
    """The more features for every image, the less their covariance is to be trusted; to two digits."""
    built = network.build(dataset.input_shape, len(dataset.classes))
    assert isinstance(built, FixedFeatures)
    layer = built.classify[0]
    assert isinstance(layer, nn.Linear)
    return float(f"{min(1.0, RIDGE_PER_FEATURE * layer.in_features / images):.2g}")
