"""Learners as they were at the end of their runs, what they recall, and studies of it."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from ...data import Dataset
from ...errors import AutorecallError, DataError
from ...learners.shared.algorithm1 import RecallLearner
from ...learners.shared.saving import load
from ...presets import share_of_images
from ...recall.batch import Initial, Recalled
from ...runs.folder import LEARNER
from ...runs.run import build_learner
from ...storage.files import make_folder, read_json
from ...storage.schema import decode
from ...stream import Indices, Stream, Task, as_batch
from ...torch_state import own_random_state
from ..rows import Run
from ..source import source_of
from .study import Place, Row, Study

Numbers = TypeVar("Numbers")


@dataclass(frozen=True)
class Samples:
    """What one batch recalled."""

    images: Tensor
    targets: Tensor
    """The teacher's probabilities."""
    real: Tensor
    """The real image that each one started from."""
    labels: Tensor
    """Its class, the originator class."""
    origins: Tensor
    """Its number among the training images; of noise, the number of any image of the batch."""
    batch: Indices
    """The numbers of all real images of the batch."""


@dataclass(frozen=True)
class Kept:
    """The learner, its data and its stream."""

    learner: RecallLearner
    dataset: Dataset
    stream: Stream
    seed: int
    share: float
    """The part of the paper's images that the run learned from."""

    def recall(self, count: int, tasks: Sequence[Task], seed: int = 0) -> Iterator[Samples]:
        """What batches of images of these tasks recall, each as if it came last, until there are `count`."""
        state = copy.deepcopy(self.learner.state_dict())
        size = self.stream[-1].batch_size
        order = np.random.default_rng(seed).permutation(np.concatenate([task.order for task in tasks]))
        for start in range(0, len(order), size):
            if count <= 0:
                return
            batch = order[start : start + size]
            found = self._recalled_by(batch)
            self.learner.load_state_dict(state)
            images, targets, real, labels, origins = (part[:count] for part in found)
            yield Samples(images, targets, real, labels, origins, batch)
            count -= len(images)

    def starting_from(self, initial: Initial) -> Kept:
        """The same learner, whose recalled images start from something else."""
        learner = copy.copy(self.learner)
        learner.config = replace(learner.config, initial=initial)
        return replace(self, learner=learner)

    def _recalled_by(self, batch: Indices) -> tuple[Tensor, ...]:
        x, y = as_batch(self.dataset.train, batch)
        seen: list[tuple[Recalled, Tensor]] = []
        self.learner.on_recall = lambda recalled, targets: seen.append((recalled, targets))
        self.learner.observe(x, y)
        recalled, targets = seen[-1]
        origins = recalled.origins if recalled.origins is not None else torch.zeros(len(targets), dtype=torch.int64)
        return recalled.images.contiguous(), targets, x[origins], y[origins], torch.from_numpy(batch)[origins]


class KeptStudy(Study):
    """A study of learners at the end of their runs. It keeps what it found, so that the learners need not be."""

    kind: ClassVar[str] = "json"
    """The ending of the file of a dataset; the label of a row names the dataset."""

    @abstractmethod
    def measure(self, end: Kept, path: Path) -> None:
        """Find it, and write it to this file."""

    def wanted(self, place: Place, seeds: int, fraction: float) -> list[Row]:
        """Those whose file is not there yet, nor a learner of any of the seeds."""
        lacking = [row for row in self.rows(seeds, fraction) if not self._file(place, row, fraction).exists()]
        return [row for row in lacking if not any(map(_has_learner, place.runs(replace(row, seeds=seeds))))]

    def measured(self, place: Place, seeds: int, fraction: float) -> Iterator[tuple[str, Path]]:
        """The datasets of which something is known, or can be found out now, from any of the seeds, and their files."""
        for row in self.rows(seeds, fraction):
            path = self._file(place, row, fraction)
            end = None if path.exists() else kept(place, replace(row, seeds=seeds))
            if end is not None:
                make_folder(path.parent)
                self.measure(end, path)
            if path.exists():
                yield row.label, path

    def _file(self, place: Place, row: Row, fraction: float) -> Path:
        return place.file(f"{self.name}-{row.label}", fraction, self.kind)


def numbers_in(path: Path, kind: type[Numbers]) -> Numbers:
    """What a study found, from its file."""
    try:
        found = decode(kind, read_json(path), path.name)
    except AutorecallError as error:
        raise DataError(f"{path}: {error}") from error
    assert isinstance(found, kind)
    return found


def kept(place: Place, row: Row) -> Kept | None:
    """The learner of a row's first run that kept one; None if there is none here, or no data."""
    for run in place.runs(row):
        if _has_learner(run):
            source = source_of(run.config, place.data)
            try:
                dataset = source.load(may_download=False)
            except DataError:
                if source.folder is not None:
                    raise
                return None
            return _loaded(dataset, run)
    return None


def _has_learner(run: Run) -> bool:
    return (run.folder / LEARNER).exists()


def _loaded(dataset: Dataset, run: Run) -> Kept:
    stream = Stream(dataset, run.config.stream, run.config.fraction, run.config.seed)
    with own_random_state(run.config.seed):
        learner = build_learner(run.config, dataset, stream)
    assert isinstance(learner, RecallLearner)
    load(learner, run.folder / LEARNER)
    # The next batch would begin a new task, and with it the teacher would become a copy of the student.
    learner.boundaries.batches -= 1
    return Kept(learner, dataset, stream, run.config.seed, share_of_images(run.config, run.result.steps))
