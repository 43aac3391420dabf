"""Arrays -> tasks in order -> batches of (x, y). A stream knows nothing about learners."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .checks import LARGEST, LARGEST_SEED, brief, check_counts
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
    """The order in which classes appear; if empty, label order. A class that is named several times returns: its images
    are shared out among those tasks."""

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

    tasks: tuple[int, ...] = ()
    """Classes in each task, such as 5 3 2, instead of classes_per_task in all of them."""

    order: tuple[str, ...] = ()
    """The order in which classes appear, by their names instead of their numbers (class_order)."""

    first_tasks: int | None = None
    """Learn only this many tasks, and test only their classes; if unset, all."""

    def __post_init__(self) -> None:
        check_counts(self, "stream", "classes_per_task", "batch_size", "passes")
        if self.first_tasks is not None:
            check_counts(self, "stream", "first_tasks")
        if self.order_seed is not None and not 0 <= self.order_seed <= LARGEST_SEED:
            raise ConfigError(
                f"stream.order_seed is {brief(self.order_seed)}; expected a whole number from 0 to 2**63 - 1"
            )
        if sum(abs(size) for size in self.class_pool) > LARGEST_POOL:
            raise ConfigError(
                f"stream.class_pool is {brief(self.class_pool)}; expected {LARGEST_POOL:,} images at most, "
                "in the proportions of the classes"
            )
        if not all(isinstance(size, int) and 1 <= size <= LARGEST for size in self.tasks):
            raise ConfigError(f"stream.tasks is {brief(self.tasks)}; expected at least one class in every task")
        if self.tasks and self.stationary:
            raise ConfigError(
                f"stream.tasks is {brief(self.tasks)} but stream.stationary makes a single task; leave one of them out"
            )
        if self.first_tasks is not None and self.stationary:
            raise ConfigError(
                f"stream.first_tasks is {self.first_tasks} but stream.stationary makes a single task; "
                "leave one of them out"
            )
        if self.order and self.class_order:
            raise ConfigError("both stream.order and stream.class_order are given; expected one of them")

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

    def task_classes(self, names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The classes of each task, as numbers; `names` are those of all classes."""
        return self.all_task_classes(names)[: self.first_tasks]

    def share_learned(self, classes: int) -> float:
        """The part of the images that the tasks have which are learned, if all classes have as many."""
        if self.first_tasks is None:
            return 1.0
        order = list(self.order or self.class_order or range(classes))
        sizes = self.tasks or self._even_sizes(len(order), classes)
        return sum(1 / order.count(label) for label in order[: sum(sizes[: self.first_tasks])]) / classes

    def all_task_classes(self, names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The same with the tasks that `first_tasks` leaves out."""
        order = self._by_name(names) if self.order else self._by_number(len(names))
        if self.stationary:
            if len(order) > len(names):
                raise ConfigError("stream.stationary makes a single task, to which no class can return; name each once")
            return (order,)
        sizes = self.tasks or self._even_sizes(len(order), len(names))
        if sum(sizes) != len(order):
            raise ConfigError(
                f"stream.tasks is {brief(sizes)}, {sum(sizes):,} in all, but there are {len(order)} classes to learn; "
                f"expected sizes that add up to {len(order)}"
            )
        tasks = tuple(order[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True))
        for number, task in enumerate(tasks, start=1):
            if len(set(task)) < len(task):
                twice = next(names[label] for label in task if task.count(label) > 1)
                raise ConfigError(f"task {number} has the class {brief(twice)} twice; expected it once in every task")
        if self.first_tasks is not None and self.first_tasks > len(tasks):
            raise ConfigError(
                f"stream.first_tasks is {self.first_tasks}; expected 1 to {len(tasks)}, as many as there are"
            )
        return tasks

    def _by_number(self, classes: int) -> tuple[int, ...]:
        order = self.class_order or tuple(range(classes))
        if set(order) != set(range(classes)):
            raise ConfigError(
                f"stream.class_order is {brief(order)}; expected each of 0 to {classes - 1} at least once"
            )
        return order

    def _by_name(self, names: Sequence[str]) -> tuple[int, ...]:
        numbers = {name: number for number, name in enumerate(names)}
        for name in self.order:
            if name not in numbers:
                raise ConfigError(
                    f"stream.order names {brief(name)}, which the data do not have; expected {brief(', '.join(names))}"
                )
        for name in names:
            if name not in self.order:
                raise ConfigError(f"stream.order leaves out {brief(name)}; expected every class at least once")
        return tuple(numbers[name] for name in self.order)

    def _even_sizes(self, length: int, classes: int) -> tuple[int, ...]:
        each = self.classes_per_task
        if each > classes:
            raise ConfigError(
                f"stream.classes_per_task is {each} but the data have {classes} classes; expected 1 to {classes}"
            )
        return tuple(min(each, length - start) for start in range(0, length, each))


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
            missing = dataset.classes[int(np.argmin(available))]
            raise ConfigError(f"class {missing:.80} has no training image; leave it out of the data")
        if config.class_pool and (len(config.class_pool) != len(available) or (available > config.class_pool).any()):
            raise ConfigError(
                f"stream.class_pool is {brief(config.class_pool)} but the classes have "
                f"{brief(tuple(available.tolist()))} images; "
                "expected at least as many for each class, or leave it empty"
            )
        tasks = []
        task_classes = config.all_task_classes(dataset.classes)
        arrives = _task_of_each_image(dataset, task_classes)
        for number, classes in enumerate(task_classes):
            order = config.arrival(np.where(arrives == number, dataset.train.labels, -1), classes, rng)
            kept = order[: max(1, round(fraction * len(order)))]
            tasks.append(Task(classes, dataset.train, kept, config.batch_size, config.passes))
        self.tasks = tuple(tasks[: config.first_tasks])

    @classmethod
    def of(cls, tasks: Sequence[Task]) -> Self:
        """A stream of these tasks."""
        stream = cls.__new__(cls)
        stream.tasks = tuple(tasks)
        return stream

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


def _task_of_each_image(dataset: Dataset, task_classes: Sequence[Sequence[int]]) -> Indices:
    """The number of the task in which each training image arrives.

    The images of a class that returns are shared out evenly, in their order, so each of them is still seen once.
    """
    labels = dataset.train.labels
    arrives = np.full(len(labels), -1)
    for label, name in enumerate(dataset.classes):
        images = np.flatnonzero(labels == label)
        tasks = [number for number, classes in enumerate(task_classes) if label in classes]
        if len(images) < len(tasks):
            raise ConfigError(
                f"class {name:.80} has {len(images)} training images but is in {len(tasks)} tasks; "
                "expected at least one for each of them"
            )
        for number, part in zip(tasks, np.array_split(images, len(tasks)), strict=True):
            arrives[part] = number
    return arrives


def as_batch(split: Split, indices: Indices | slice) -> tuple[Tensor, Tensor]:
    """Inputs as float32 and labels as int64; bytes stay bytes until here, and are scaled to [0, 1]."""
    inputs, labels = torch.from_numpy(split.inputs[indices].copy()), torch.from_numpy(split.labels[indices].copy())
    return (inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs), labels
