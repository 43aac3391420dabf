"""How much of a real image is left in a recalled one: a study of our own, not of the paper.

Images are recalled once more by the learner of the end of a run of ARM, as if a batch of its last task came again: from
images of that batch, as in the paper, or from noise. Each is compared with its own image, the one that it started from,
and with all other training images that the run saw. What starts from noise has none; there, the most similar image of
the batch counts. Beside them stand what is no recalled image: its own image under as much noise as recall changed,
a test image of the same class, and noise.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...errors import DataError
from ...recall.batch import per_image
from ...storage.files import write_json
from ...stream import Indices, as_batch
from ..table import Cell, Figure, Table
from .kept import Kept, KeptStudy, Samples, numbers_in
from .likeness import standardised, structural_similarity
from .study import Place, Row, share_of, write_table

IMAGES = 300
DATASETS = {"mnist": "MNIST-5k", "cifar10": "CIFAR10"}
KINDS = (
    "recalled from real images",
    "real images under as much noise",
    "test images of the same class",
    "recalled from noise",
    "noise",
)


@dataclass(frozen=True)
class Likeness:
    """One kind of images: means and standard deviations over them."""

    kind: str
    correlation: float
    """With its own image."""
    correlation_deviation: float
    similarity: float
    """SSIM with its own image."""
    similarity_deviation: float
    nearest: float
    """The highest correlation with any other training image."""
    nearest_deviation: float
    own_nearest: float
    """Share of images, in percent, whose own image is the nearest of all."""


@dataclass(frozen=True)
class Leftover:
    """What the study found on one dataset."""

    images: int
    seen: int
    """Training images that the run saw."""
    kinds: list[Likeness]


class LeftoverStudy(KeptStudy):
    """Correlation and SSIM with the origin, and the nearest neighbour."""

    name = "leftover"
    what = "ours: how much of a real image is left in a recalled one, MNIST and CIFAR10"

    def rows(self, seeds: int, fraction: float) -> list[Row]:
        """One run of ARM on each dataset, whose learner is kept."""
        parts = {name: share_of(name, fraction) for name in DATASETS}
        return [Row.of(name, f"{name}/arm", 1, part, keep_learner=True) for name, part in parts.items()]

    def measure(self, end: Kept, path: Path) -> None:
        """On images of the last task."""
        write_json(path, asdict(leftover(end, IMAGES)))

    def write(self, place: Place, seeds: int, fraction: float) -> list[Path]:
        """Measured, unless its numbers are there; then as one table."""
        written: list[Path] = []
        lines: list[list[Cell]] = []
        counts: list[str] = []
        for dataset, path in self.measured(place, seeds, fraction):
            found = _read(path)
            written.append(path)
            counts.append(f"{found.images:,} on {DATASETS[dataset]}, where the run saw {found.seen:,}")
            lines += [[DATASETS[dataset], *_cells(likeness)] for likeness in found.kinds]
        if not lines:
            return []
        header = ("dataset", "images", "correlation", "SSIM", "nearest other", "own is nearest, %")
        notes = [
            f"Mean ± standard deviation over images: {'; '.join(counts)}. An image's own is the one that recall "
            "started from or, for noise, the most similar one of the batch: correlation and SSIM are with that one. "
            "Nearest other: the highest correlation with any other training image. The last column is the share of "
            "images whose own is the nearest of all training images."
        ]
        table = Table("How much of a real image is left in a recalled one, ARM", header, lines, notes)
        return [*written, *write_table(place, self.name, fraction, table)]


def leftover(end: Kept, count: int) -> Leftover:
    """The study on the learner of the end of a run."""
    tasks = end.stream.tasks[-1:]
    seen = np.sort(np.concatenate([task.order for task in end.stream.tasks]))
    real, _ = as_batch(end.dataset.train, seen)
    generator = torch.Generator().manual_seed(0)

    def compare(kind: str, images: Sequence[Tensor], own: Sequence[Indices]) -> Likeness:
        places = [np.searchsorted(seen, numbers) for numbers in own]
        return likeness(kind, torch.cat(list(images)), places, real)

    found = list(end.recall(count, tasks))
    own = [np.array([number]) for samples in found for number in samples.origins.tolist()]
    noisy = [_under_noise(samples, generator) for samples in found]
    alike = [_of_same_class(end, samples, generator) for samples in found]
    starts = list(end.starting_from("noise").recall(count, tasks, seed=1))
    batches = [samples.batch for samples in starts for _ in samples.images]
    noise = [torch.rand(samples.images.shape, generator=generator) for samples in starts]
    groups = ([samples.images for samples in found], noisy, alike, [samples.images for samples in starts], noise)
    kinds = [
        compare(kind, images, batches if "from noise" in kind or kind == "noise" else own)
        for kind, images in zip(KINDS, groups, strict=True)
    ]
    return Leftover(len(own), len(seen), kinds)


def likeness(kind: str, images: Tensor, own: Sequence[Indices], real: Tensor) -> Likeness:
    """Images beside real ones, of which `own` numbers those that count as its own, for each image."""
    products = standardised(images) @ standardised(real).T
    correlations, similarities, others = [], [], []
    for image, line, numbers in zip(images, products, own, strict=True):
        mine = torch.from_numpy(numbers)
        pairs = image.expand(len(mine), *image.shape)
        correlations.append(float(line[mine].max()))
        similarities.append(float(structural_similarity(pairs, real[mine]).max()))
        others.append(float(line.index_fill(0, mine, -torch.inf).max()))
    nearest = [mine > other for mine, other in zip(correlations, others, strict=True)]
    spreads = (*_spread(correlations), *_spread(similarities), *_spread(others))
    return Likeness(kind, *spreads, 100 * statistics.fmean(nearest))


def _spread(values: Sequence[float]) -> tuple[float, float]:
    return statistics.fmean(values), statistics.stdev(values)


def _under_noise(samples: Samples, generator: torch.Generator) -> Tensor:
    """The images that recall started from, with Gaussian noise that is as long as what recall changed."""
    changed = (samples.images - samples.real).flatten(1).norm(dim=1)
    noise = torch.randn(samples.real.shape, generator=generator)
    return samples.real + noise * per_image(changed / noise.flatten(1).norm(dim=1), noise)


def _of_same_class(end: Kept, samples: Samples, generator: torch.Generator) -> Tensor:
    """A test image of the class of each origin."""
    test, chosen = end.dataset.test, []
    for label in samples.labels.tolist():
        of_class = np.flatnonzero(test.labels == label)
        chosen.append(of_class[int(torch.randint(len(of_class), (1,), generator=generator))])
    return as_batch(test, np.array(chosen))[0]


def _cells(found: Likeness) -> list[Cell]:
    return [
        found.kind,
        Figure(found.correlation, found.correlation_deviation, digits=3),
        Figure(found.similarity, found.similarity_deviation, digits=3),
        Figure(found.nearest, found.nearest_deviation, digits=3),
        Figure(found.own_nearest),
    ]


def _read(path: Path) -> Leftover:
    """The numbers of one dataset, if they are complete."""
    found = numbers_in(path, Leftover)
    if tuple(likeness.kind for likeness in found.kinds) != KINDS:
        raise DataError(f"{path} lacks some kinds of images, or has others; remove it to measure again")
    return found
