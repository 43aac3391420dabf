"""Experience replay on MNIST, ours and as published, one difference at a time: which of them changes the figures?

    python scripts/er_differences.py DIR [--seeds 70] [--kept 50] [--only VARIANT ...] [--methods METHOD ...]

DIR has the MNIST idx files. Prints accuracy and forgetting for every variant: mean ± standard deviation over seeds 0,
1, …, and the standard error of the mean accuracy. "Published" is the implementation of Aljundi et al. that the paper
used for its ER and ER-MIR rows (github.com/optimass/Maximally_Interfered_Retrieval: er_main.py, data.py, buffer.py,
mir.py). A run takes 2 to 3 s on an idle core, everything an hour.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from autorecall.data import Dataset, Split, load
from autorecall.learners.er import ER, ERConfig
from autorecall.learners.er_mir import ERMIR
from autorecall.learners.shared.reservoir import Reservoir
from autorecall.metrics import average_accuracy, forgetting, task_accuracy
from autorecall.presets import PRESETS
from autorecall.runs.run import build_learner
from autorecall.stream import Stream, as_batch
from autorecall.torch_state import limited_threads, own_random_state

METHODS = {"ER": "mnist/er-50", "ER-MIR": "mnist/er-mir-50"}


@dataclass(frozen=True)
class Variant:
    """How a procedure differs from ours."""

    images: Literal["embedded", "balanced", "in proportion"] = "embedded"
    """embedded: MNIST-5k, the same for every seed. balanced: as many per class, drawn for every seed. in proportion:
    drawn from all images of a task, so that the commoner class has more; published."""

    batches: int = 100
    """Per task; published: 101, because the images seen are compared with 1,000 before a batch is counted."""

    early_reservoir: bool = False
    """Published: all images of a batch draw from the number seen before it, and so are kept a little too often."""

    misplaced_outputs: bool = False
    """Published: outputs are remembered by an image's rank among those of earlier tasks, which changes, not by its
    slot; and they are not forgotten when another image takes the slot."""

    over_images: bool = False
    """Published: a task's accuracy is the share of its images, not the mean of its classes' accuracies."""


VARIANTS = {
    "ours": Variant(),
    "accuracy over images": Variant(over_images=True),
    "early reservoir": Variant(early_reservoir=True),
    "misplaced outputs": Variant(misplaced_outputs=True),
    "other images for every seed": Variant("balanced"),
    "other images, 101 batches": Variant("balanced", 101),
    "other images, in proportion": Variant("in proportion"),
    "all, as published": Variant("in proportion", 101, True, True, True),
}


class EarlyReservoir(Reservoir):
    """Draws before it counts."""

    def add(self, x: Tensor, y: Tensor, task: int, generator: torch.Generator) -> list[int]:
        """Offer a batch; return the slots that hold a new image."""
        room = self.capacity - len(self)
        changed = super().add(x[:room], y[:room], task, generator)
        if len(x) > room:
            slots = torch.randint(self.seen, (len(x) - room,), generator=generator).tolist()
            for slot, image, label in zip(slots, x[room:].detach(), y[room:].tolist(), strict=True):
                if slot < self.capacity:
                    self._put(slot, image[None], label, task)
                    changed.append(slot)
            self.seen += len(slots)
        return changed


class MisplacedOutputs(ERMIR):
    """Remembers outputs in the wrong places."""

    def fill(self, x: Tensor, y: Tensor) -> list[int]:
        """Offer a batch to the reservoir; a new image inherits outputs."""
        return ER.fill(self, x, y)

    def _lowest(self, slots: Tensor, outputs: Tensor, labels: Tensor, loss: Tensor) -> Tensor:
        earlier = torch.nonzero(self.reservoir.tasks < self.boundaries.tasks).flatten()
        return super()._lowest(torch.searchsorted(earlier, slots), outputs, labels, loss)


@cache
def mnist5k() -> Dataset:
    """Read once."""
    return load("mnist")


def draw(full: Dataset, variant: Variant, seed: int) -> Dataset:
    """The data of a run."""
    if variant.images == "embedded":
        return mnist5k()
    rng, labels = np.random.default_rng([seed, 1]), full.train.labels
    together = 1 if variant.images == "balanced" else 2  # classes
    drawn = []
    for label in range(0, 10, together):
        images = np.flatnonzero(np.isin(labels, range(label, label + together)))
        drawn.append(rng.permutation(images)[: 5 * variant.batches * together])
    kept = np.sort(np.concatenate(drawn))
    return replace(full, train=Split(full.train.inputs[kept], labels[kept]))


def figures(full: Dataset, method: str, kept: int, variant: Variant, seed: int) -> tuple[float, float]:
    """Accuracy and forgetting of a run."""
    config = PRESETS[METHODS[method]].config
    assert isinstance(config.learner, ERConfig)
    config = replace(config, learner=replace(config.learner, kept_images=kept), seed=seed)
    data = draw(full, variant, seed)
    stream = Stream(data, config.stream, seed=seed)
    with own_random_state(seed):
        learner = build_learner(config, data, stream)
    assert isinstance(learner, ER)
    if variant.misplaced_outputs and isinstance(learner, ERMIR):
        learner = MisplacedOutputs(learner.network, learner.config, seed=seed)
    if variant.early_reservoir:
        learner.reservoir = EarlyReservoir(kept)
    (inputs, _), labels, matrix = as_batch(data.test, slice(None)), data.test.labels, []
    for task in stream:
        for x, y in task:
            learner.observe(x, y)
        found = learner.predict(inputs).argmax(1).numpy()
        matrix.append([task_accuracy(found, labels, tested.classes, variant.over_images) for tested in stream])
    forgotten = forgetting(matrix)
    assert forgotten is not None
    return average_accuracy(matrix), forgotten


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Which difference to the published ER changes its figures?")
    parser.add_argument("folder", type=Path, help="has the four idx files of MNIST")
    parser.add_argument("--seeds", type=int, default=70, help="runs of every variant")
    parser.add_argument("--kept", type=int, default=50, help="images kept in total")
    parser.add_argument("--only", nargs="+", choices=tuple(VARIANTS), default=tuple(VARIANTS), help="variants to run")
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), default=tuple(METHODS), help="methods to run")
    options = parser.parse_args()
    full = load("mnist-full", options.folder, may_download=False)
    print(f"{'':7} {'variant':28} {'accuracy':>11} {'error':>5} {'forgetting':>11}   {options.kept} images")
    with limited_threads(1):
        for method in options.methods:
            for name in options.only:
                if method == "ER" and name == "misplaced outputs":
                    continue  # it remembers none
                runs = [figures(full, method, options.kept, VARIANTS[name], seed) for seed in range(options.seeds)]
                accuracy, forgotten = zip(*runs, strict=True)
                error = stdev(accuracy) / len(runs) ** 0.5
                print(f"{method:7} {name:28} {_spread(accuracy)} {error:5.1f} {_spread(forgotten)}", flush=True)


def _spread(values: Sequence[float]) -> str:
    return f"{fmean(values):5.1f} ± {stdev(values):3.1f}"


if __name__ == "__main__":
    main()
