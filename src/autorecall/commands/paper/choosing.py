"""Every method on three datasets, for those who have to choose one: accuracy, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .. import costs
from ..rows import Run
from ..table import Cell, Figure, Table
from .study import Place, Row, Study, part_of, write_table

DATASETS = {"mnist": "MNIST-5k", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR10"}
NATURAL_SEEDS = 3  # of CIFAR10 at most, where a run can take hours


@dataclass(frozen=True)
class Method:
    """A line of the tables."""

    label: str
    keeps: str
    small: str
    """Its preset on MNIST, which runs on Fashion-MNIST as it is."""
    natural: str
    """Its preset on CIFAR10."""
    seeds: int = 5
    """Of Fashion-MNIST at most."""


NETWORK, IMAGES, STATISTICS = "an earlier network", "images", "statistics of classes"
METHODS = (
    Method("patch filters, streaming LDA", STATISTICS, "patches", "patches", 3),
    Method("class Gaussians of a descriptor", STATISTICS, "gaussians", "gaussians", 3),
    Method("streaming LDA on random features", STATISTICS, "slda", "slda"),
    Method("mean shift", STATISTICS, "mean-shift", "mean-shift"),
    Method("GEN", "a generator", "gen", "gen", 1),
    Method("ER-MIR", IMAGES, "er-mir-50", "er-mir-200"),
    Method("ER", IMAGES, "er-50", "er-200"),
    Method("ADI", NETWORK, "adi", "adi", 3),
    Method("ARM", NETWORK, "arm", "arm", 3),
    Method("LwF", NETWORK, "lwf", "lwf"),
    Method("naive SGD", "nothing", "naive", "naive"),
    Method("all classes mixed, SGD", "", "stationary", "stationary"),
)


class Choosing(Study):
    """What a table per dataset does not show at a glance."""

    name = "choosing"
    what = "ours: every method on MNIST, Fashion-MNIST and CIFAR10, with its costs"

    def rows(self, seeds: int, fraction: float) -> list[Row]:
        """Every method on every dataset."""
        return [row for method in METHODS for row in _rows(method, seeds, fraction).values()]

    def write(self, place: Place, seeds: int, fraction: float) -> list[Path]:
        """Two tables, of the runs that there are."""
        figures: list[list[Cell]] = []
        prices: list[list[Cell]] = []
        for method in METHODS:
            runs = {dataset: place.runs(row) for dataset, row in _rows(method, seeds, fraction).items()}
            if any(runs.values()):
                counts = " / ".join(str(len(found)) if found else "-" for found in runs.values())
                accuracies = [Figure.over([run.result.accuracy for run in found]) for found in runs.values()]
                figures.append([method.label, method.keeps, *accuracies, counts])
                prices.append([method.label, *_prices(method, runs["mnist"], runs["cifar10"])])
        if not figures:
            return []
        notes = [
            "Mean ± standard deviation over seeds, in percent, on all test images; chance is 10 %. Five tasks of two "
            "classes, every image once, ten at a time. ER and ER-MIR keep 50 images, on CIFAR10 200. Empty: not run."
        ]
        header = ("method", "keeps", *DATASETS.values(), "seeds")
        written = write_table(place, self.name, fraction, Table(part_of("Accuracy", fraction), header, figures, notes))
        header = ("method", "MB, MNIST", "MB, CIFAR10", "ms, MNIST", "ms, CIFAR10")
        notes = [
            "MB: what is kept besides the network that is trained, at the end. ms: the time for a batch of "
            "ten on one thread of an AMD EPYC with AVX2 (ADI on CIFAR10: in the third task); for patch filters, "
            "class Gaussians and streaming LDA, of a Xeon with AVX-512, where naive SGD on MNIST takes 1.4. Fashion-"
            "MNIST takes as long as MNIST."
        ]
        return written + write_table(place, f"{self.name}-costs", fraction, Table("Costs", header, prices, notes))


def _rows(method: Method, seeds: int, fraction: float) -> dict[str, Row]:
    small, natural = f"mnist/{method.small}", f"cifar10/{method.natural}"
    fashion = {"dataset": "fashion-mnist"}
    return {
        "mnist": Row.of(method.label, small, seeds, fraction),
        "fashion-mnist": Row.of(method.label, small, min(seeds, method.seeds), fraction, fashion),
        "cifar10": Row.of(method.label, natural, min(seeds, NATURAL_SEEDS), fraction),
    }


def _prices(method: Method, small: list[Run], natural: list[Run]) -> Iterator[Cell]:
    for runs in (small, natural):
        memory = runs[0].result.memory if runs else None
        yield None if memory is None else f"{memory.image_mb + memory.number_mb:.2f}"
    for known, name in ((costs.MNIST, method.small), (costs.CIFAR10, method.natural)):
        yield f"{known[name]:,g}"
