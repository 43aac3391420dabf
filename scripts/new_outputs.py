"""How low a new output should begin: ARM learns six digits in three tasks, gets two more outputs, and learns two more.

    python scripts/new_outputs.py        # about five minutes

Accuracy on validation images of the six and of the two, with 500 and with 60 images per class, means over three seeds.
"As if always there" has all eight outputs from the beginning. `learners.shared.growing.BELOW` was chosen by this.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from autorecall import ARM, Dataset, MLPConfig, load_dataset
from autorecall.learners.shared import growing
from autorecall.stream import as_batch
from autorecall.torch_state import limited_threads

TASKS = ((0, 1), (2, 3), (4, 5))
BEFORE, NEW = range(6), (6, 7)
LEVELS = (0.0, 0.5, 0.75, 1.0, 1.5, 2.0)


def batches(data: Dataset, labels: tuple[int, ...], each: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The first images of some classes, shuffled."""
    chosen = np.concatenate([np.flatnonzero(data.train.labels == label)[:each] for label in labels])
    order = np.random.default_rng(seed).permutation(chosen)
    for start in range(0, len(order), 10):
        yield as_batch(data.train, order[start : start + 10])


def accuracy(learner: ARM, data: Dataset, labels: tuple[int, ...] | range) -> float:
    """The mean over classes, in percent."""
    found = []
    for label in labels:
        x, y = as_batch(data.val, np.flatnonzero(data.val.labels == label)[:100])
        found.append(100 * float((learner.predict(x).argmax(1) == y).float().mean()))
    return statistics.fmean(found)


def two_days(data: Dataset, each: int, seed: int, below: float | None) -> tuple[float, float]:
    """Accuracy on the classes before and on the new ones; None for outputs that were always there."""
    torch.manual_seed(seed)
    learner = ARM(MLPConfig().build((1, 28, 28), 6 if below is not None else 8), seed=seed)
    for task in (*TASKS, NEW):
        if task == NEW and below is not None:
            growing.BELOW = below
            learner.grow(8)
        learner.boundary()
        for x, y in batches(data, task, each, seed):
            learner.observe(x, y)
    return accuracy(learner, data, BEFORE), accuracy(learner, data, NEW)


def main() -> None:
    """Print one line per number of images and level."""
    data = load_dataset("mnist")
    with limited_threads(1):
        for each in (500, 60):
            for below in (None, *LEVELS):
                before, new = (
                    statistics.fmean(values)
                    for values in zip(*(two_days(data, each, seed, below) for seed in range(3)), strict=True)
                )
                name = "as if always there" if below is None else f"{below} below the mean"
                both = (6 * before + 2 * new) / 8
                print(f"{each:3} images  {name:20} six {before:5.1f}  two {new:5.1f}  all {both:5.1f}", flush=True)


if __name__ == "__main__":
    main()
