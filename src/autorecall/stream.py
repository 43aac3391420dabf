"""Arrays -> tasks in order -> batches of (x, y). A stream knows nothing about learners."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .checks import LARGEST_SEED, brief, check_counts
from .data import Dataset, Split
from .errors import ConfigError

Indices: TypeAlias = NDArray[np.int64]
LARGEST_POOL = 20_000_000  # images: a pool is drawn from in memory, and all of ImageNet has 14 million


@dataclass(frozen=True)
class StreamConfig:
    """How a dataset becomes a stream of tasks."""

    classes_per_task: int = 2
    """Classes introduced per task; the last task may have fewer."""

    class_order: tuple[int, ...] = ()
    """The order in which classes appear; if empty, label order."""

    batch_size: int = 10
    """N, images per batch; the last batch of a pass may be smaller."""

    passes: int = 1
    """Passes over each task's images, in the same order, before the next task begins."""

    order_seed: int | None = None
    """Seed of the order within tasks; if unset, the run's seed."""

    class_pool: tuple[int, ...] = ()
    """Class sizes of the set the data was drawn from; if empty, tasks are shuffled evenly. Otherwise classes arrive
    in these proportions, and a task ends with its rarest class alone, as in the published MNIST-5k."""

    stationary: bool = False
    """Shuffle all classes together into a single task, the upper bound in the paper's tables."""

    def __post_init__(self) -> None:
        check_counts(self, "stream", "classes_per_task", "batch_size", "passes")
        if self.order_seed is not None and not 0 <= self.order_seed <= LARGEST_SEED:
            raise ConfigError(
                f"stream.order_seed is {brief(self.order_seed)}; expected a whole number from 0 to 2**63 - 1"
            )
        if sum(abs(size) for size in self.class_pool) > LARGEST_POOL:
            raise ConfigError(
                f"stream.class_pool is {brief(self.class_pool)}; expected {LARGEST_POOL:,} images at most, "
                "in the proportions of the classes"
            )

    def arrival(self, labels: Indices, classes: tuple[int, ...], rng: np.random.Generator) -> Indices:
        """The order in which the images of a task arrive, as indices into `labels`.

        With a `class_pool`, classes arrive in its proportions until their images run out, so a task ends with its
        rarest class alone. The published implementation builds its MNIST-5k streams this way (mnist.py in its
        repository): all images of a task in random order, cut to 500 per class. Tasks then end with several batches of
        a single class, which changes the figures: docs/results.md has both.
        """
        order = rng.permutation(np.flatnonzero(np.isin(labels, classes)))
        if not self.class_pool or self.stationary:
            return order
        pool = rng.permutation(np.repeat(classes, [self.class_pool[label] for label in classes]))
        images = [order[labels[order] == label] for label in classes]
        places = [np.flatnonzero(pool == label)[: len(own)] for label, own in zip(classes, images, strict=True)]
        return np.concatenate(images)[np.argsort(np.concatenate(places))]

    def task_classes(self, classes: int) -> tuple[tuple[int, ...], ...]:
        """The classes of each task."""
        order = self.class_order or tuple(range(classes))
        if sorted(order) != list(range(classes)):
            raise ConfigError(f"stream.class_order is {brief(order)}; expected each of 0 to {classes - 1} once")
        if self.stationary:
            return (order,)
        if self.classes_per_task > classes:
            raise ConfigError(
                f"stream.classes_per_task is {self.classes_per_task} but the data have {classes} classes; "
                f"expected 1 to {classes}"
            )
        return tuple(order[i : i + self.classes_per_task] for i in range(0, classes, self.classes_per_task))


@dataclass(frozen=True)
class Task:
    """One task of the stream; iterate over it for its batches."""

    classes: tuple[int, ...]
    split: Split
    order: Indices
    """Indices into the split, in the order of one pass."""
    batch_size: int
    passes: int

    def __len__(self) -> int:
        return self.passes * math.ceil(len(self.order) / self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.after(0)

    def after(self, done: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches that follow the first `done`, which are not made."""
        starts = range(0, len(self.order), self.batch_size)
        for batch in range(done, len(self)):
            start = starts[batch % len(starts)]
            yield as_batch(self.split, self.order[start : start + self.batch_size])


class Stream:
    """A dataset as class-incremental tasks. The same config, fraction and seed give the same batches every time."""

    def __init__(self, dataset: Dataset, config: StreamConfig, fraction: float = 1.0, seed: int = 0) -> None:
        """`fraction` keeps the first part of every task, so each shorter task is a prefix of the full one."""
        if not 0 < fraction <= 1:
            raise ConfigError(f"fraction is {brief(fraction)}; expected a number above 0 and at most 1")
        rng = np.random.default_rng(seed if config.order_seed is None else config.order_seed)
        available = np.bincount(dataset.train.labels, minlength=len(dataset.classes))
        if not available.all():
            raise ConfigError(f"class {int(np.argmin(available))} has no training image; leave it out of the data")
        if config.class_pool and (len(config.class_pool) != len(available) or (available > config.class_pool).any()):
            raise ConfigError(
                f"stream.class_pool is {brief(config.class_pool)} but the classes have "
                f"{brief(tuple(available.tolist()))} images; "
                "expected at least as many for each class, or leave it empty"
            )
        tasks = []
        for classes in config.task_classes(len(dataset.classes)):
            order = config.arrival(dataset.train.labels, classes, rng)
            kept = order[: max(1, round(fraction * len(order)))]
            tasks.append(Task(classes, dataset.train, kept, config.batch_size, config.passes))
        self.tasks = tuple(tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    def __getitem__(self, index: int) -> Task:
        return self.tasks[index]

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    @property
    def task_lengths(self) -> tuple[int, ...]:
        """Batches in each task."""
        return tuple(len(task) for task in self.tasks)


def as_batch(split: Split, indices: Indices | slice) -> tuple[Tensor, Tensor]:
    """Inputs as float32 and labels as int64; bytes stay bytes until here, and are scaled to [0, 1]."""
    inputs, labels = torch.from_numpy(split.inputs[indices].copy()), torch.from_numpy(split.labels[indices].copy())
    return (inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs), labels
