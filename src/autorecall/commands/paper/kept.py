"""Learners as they were at the end of their runs, and what they recall: for the gradient study and the pictures."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...data import Dataset
from ...errors import DataError
from ...learners.shared.algorithm1 import RecallLearner
from ...learners.shared.saving import load
from ...recall.batch import Recalled
from ...runs.folder import LEARNER
from ...runs.run import build_learner
from ...stream import Indices, Stream, Task, as_batch
from ...torch_state import own_random_state
from ..rows import Run
from ..source import source_of
from .study import Place, Row


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


@dataclass(frozen=True)
class Kept:
    """The learner, its data and its stream."""

    learner: RecallLearner
    dataset: Dataset
    stream: Stream

    def recall(self, count: int, tasks: Sequence[Task], seed: int = 0) -> Iterator[Samples]:
        """What batches of images of these tasks recall, each as if it came last, until there are `count`."""
        state = copy.deepcopy(self.learner.state_dict())
        size = self.stream[-1].batch_size
        order = np.random.default_rng(seed).permutation(np.concatenate([task.order for task in tasks]))
        for start in range(0, len(order), size):
            if count <= 0:
                return
            found = self._recalled_by(order[start : start + size])
            self.learner.load_state_dict(state)
            yield Samples(*(part[:count] for part in found))
            count -= len(found[0])

    def _recalled_by(self, batch: Indices) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x, y = as_batch(self.dataset.train, batch)
        seen: list[tuple[Recalled, Tensor]] = []
        self.learner.on_recall = lambda recalled, targets: seen.append((recalled, targets))
        self.learner.observe(x, y)
        recalled, targets = seen[-1]
        origins = recalled.origins if recalled.origins is not None else torch.zeros(len(targets), dtype=torch.int64)
        return recalled.images.contiguous(), targets, x[origins], y[origins]


def kept(place: Place, row: Row) -> Kept | None:
    """The learner of a row's first run that kept one; None if there is none here, or no data."""
    for run in place.runs(row):
        if (run.folder / LEARNER).exists():
            source = source_of(run.config, place.data)
            try:
                dataset = source.load(may_download=False)
            except DataError:
                if source.folder is not None:
                    raise
                return None
            return _loaded(dataset, run)
    return None


def _loaded(dataset: Dataset, run: Run) -> Kept:
    stream = Stream(dataset, run.config.stream, run.config.fraction, run.config.seed)
    with own_random_state(run.config.seed):
        learner = build_learner(run.config, dataset, stream)
    assert isinstance(learner, RecallLearner)
    load(learner, run.folder / LEARNER)
    # The next batch would begin a new task, and with it the teacher would become a copy of the student.
    learner.boundaries.batches -= 1
    return Kept(learner, dataset, stream)
