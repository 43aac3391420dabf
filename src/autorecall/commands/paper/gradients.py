"""The gradient study: what learning a recalled image does to the network, beside learning real images.

For each recalled image, the gradient of its loss is compared with that of two real images, one of the class that it
started from (originator) and one of the class that the teacher sees in it (target): the dot product of both,
normalised, for each parameter tensor. A layer's figure is the mean over its tensors; mean and standard deviation are
over images. The network is that of the end of the run, in eval mode, and does not change. Recall starts from images of
all tasks: the paper does not say which.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...errors import DataError
from ...learners.shared.modes import evaluating
from ...storage.files import write_json
from ...stream import as_batch
from .. import drawing
from ..table import Cell, Figure, Table
from .kept import Kept, KeptStudy, numbers_in
from .study import Place, Row, percent, write_table

IMAGES = 1000
DATASETS = {"mnist": "MNIST", "cifar10": "CIFAR10", "miniimagenet": "MiniImageNet"}
KINDS = ("hard", "soft")
CLASSES = ("originator", "target")

# mean ± standard deviation of (originator, target), hard then soft targets
PUBLISHED: dict[str, dict[str, tuple[str, str, str, str]]] = {
    "mnist": {
        "FC 1": ("0.022 ± 0.178", "0.255 ± 0.176", "0.013 ± 0.182", "0.055 ± 0.196"),
        "FC 2": ("0.012 ± 0.168", "0.325 ± 0.228", "0.015 ± 0.207", "0.072 ± 0.246"),
        "FC 3": ("0.002 ± 0.264", "0.675 ± 0.160", "0.004 ± 0.311", "0.100 ± 0.293"),
        "All": ("0.012 ± 0.181", "0.418 ± 0.181", "0.011 ± 0.216", "0.076 ± 0.233"),
    },
    "cifar10": {
        "Conv 1": ("0.034 ± 0.281", "0.205 ± 0.254", "0.016 ± 0.270", "0.084 ± 0.275"),
        "Conv 2": ("0.036 ± 0.262", "0.259 ± 0.214", "0.001 ± 0.263", "0.080 ± 0.261"),
        "Conv 3": ("0.048 ± 0.315", "0.344 ± 0.234", "-0.017 ± 0.312", "0.060 ± 0.323"),
        "Conv 4": ("0.036 ± 0.362", "0.366 ± 0.277", "-0.046 ± 0.364", "0.040 ± 0.388"),
        "Conv 5": ("0.012 ± 0.308", "0.419 ± 0.210", "-0.052 ± 0.313", "0.096 ± 0.332"),
        "FC": ("0.002 ± 0.365", "0.687 ± 0.143", "-0.096 ± 0.351", "0.137 ± 0.395"),
        "All": ("0.032 ± 0.278", "0.355 ± 0.196", "-0.030 ± 0.279", "0.071 ± 0.298"),
    },
    "miniimagenet": {
        "Conv 1": ("0.061 ± 0.316", "0.246 ± 0.287", "0.065 ± 0.319", "0.212 ± 0.302"),
        "Conv 2": ("0.032 ± 0.274", "0.282 ± 0.241", "0.022 ± 0.273", "0.262 ± 0.259"),
        "Conv 3": ("0.028 ± 0.326", "0.414 ± 0.258", "0.034 ± 0.315", "0.381 ± 0.273"),
        "Conv 4": ("-0.031 ± 0.264", "0.474 ± 0.198", "-0.040 ± 0.247", "0.433 ± 0.216"),
        "Conv 5": ("-0.181 ± 0.195", "0.556 ± 0.142", "-0.200 ± 0.190", "0.505 ± 0.186"),
        "FC": ("-0.014 ± 0.084", "0.726 ± 0.084", "-0.019 ± 0.070", "0.655 ± 0.156"),
        "All": ("-0.036 ± 0.218", "0.439 ± 0.177", "-0.043 ± 0.212", "0.401 ± 0.197"),
    },
}


@dataclass(frozen=True)
class Correlation:
    """One layer: mean and standard deviation over recalled images."""

    layer: str
    kind: str
    """Targets of the recalled images: hard, the most probable class, or soft, the teacher's probabilities."""
    with_class: str
    mean: float
    deviation: float


@dataclass(frozen=True)
class Correlations:
    """What the study found on one dataset."""

    images: int
    values: list[Correlation]
    seed: int = 0
    """Of the run whose learner it was."""
    share: float = 1.0
    """The part of the paper's images that the run learned from."""

    @property
    def layers(self) -> list[str]:
        """From the lowest to the highest, then All."""
        return list(dict.fromkeys(value.layer for value in self.values))

    def value(self, layer: str, kind: str, with_class: str) -> Correlation:
        """That of one layer."""
        wanted = (layer, kind, with_class)
        return next(value for value in self.values if (value.layer, value.kind, value.with_class) == wanted)


class Gradients(KeptStudy):
    """Correlations of gradients, per layer."""

    name = "gradients"
    what = "gradients of recalled images beside those of real ones, per layer, for each dataset"

    def rows(self, seeds: int, fraction: float) -> list[Row]:
        """One run of ARM on each dataset, whose learner is kept."""
        return [Row.of(dataset, f"{dataset}/arm", 1, fraction, keep_learner=True) for dataset in DATASETS]

    def measure(self, end: Kept, path: Path) -> None:
        """Of many recalled images."""
        write_json(path, asdict(correlations(end, IMAGES)))

    def known(self, place: Place, fraction: float) -> dict[str, Correlations]:
        """What was found so far, by dataset."""
        paths = {row.label: self._file(place, row, fraction) for row in self.rows(1, fraction)}
        return {dataset: _read(path) for dataset, path in paths.items() if path.exists()}

    def write(self, place: Place, seeds: int, fraction: float) -> list[Path]:
        """Measured, unless its numbers are there; then as tables and a figure."""
        written: list[Path] = []
        found: dict[str, Correlations] = {}
        for dataset, numbers in self.measured(place, seeds, fraction):
            found[dataset] = read = _read(numbers)
            written += [numbers, *write_table(place, f"gradients-{dataset}", fraction, _table(dataset, read))]
        if found:
            written += self._draw(place, fraction, found)
        return written

    def _draw(self, place: Place, fraction: float, found: dict[str, Correlations]) -> list[Path]:
        figure = drawing.new_figure(8.0, 2.6 * len(found) + 0.3)
        images = next(iter(found.values())).images
        figure.suptitle(f"mean ± standard deviation over {images:,} recalled images", fontsize=10)
        axes = figure.subplots(len(found), 2, squeeze=False, sharey=True)
        for line, (dataset, measured) in zip(axes, found.items(), strict=True):
            for ax, kind in zip(line, KINDS, strict=True):
                layers = [layer for layer in measured.layers if layer != "All"]
                for shift, with_class, colour in zip((-0.17, 0.17), CLASSES, drawing.COLOURS, strict=False):
                    values = [measured.value(layer, kind, with_class) for layer in layers]
                    ax.bar(
                        np.arange(len(layers)) + shift,
                        [value.mean for value in values],
                        0.32,
                        yerr=[value.deviation for value in values],
                        color=colour,
                        label=f"{with_class} class",
                        error_kw={"elinewidth": 0.8, "capsize": 2},
                    )
                ax.axhline(0, color="0.3", linewidth=0.8)
                ax.set_xticks(range(len(layers)), layers, fontsize=9)
                ax.set_title(f"{DATASETS[dataset]}, {kind} targets", fontsize=10)
                drawing.tidy(ax)
                ax.grid(axis="x", visible=False)
            line[0].set_ylabel("correlation of gradients")
        axes[0][0].legend(fontsize=8, loc="upper left")
        return drawing.save(figure, place.stem(self.name, fraction))


def _read(path: Path) -> Correlations:
    """The numbers of one dataset, if they are complete."""
    found = numbers_in(path, Correlations)
    wanted = {(layer, kind, c) for layer in found.layers for kind in KINDS for c in CLASSES}
    if not found.values or wanted != {(value.layer, value.kind, value.with_class) for value in found.values}:
        raise DataError(f"{path} lacks some layers, or has others twice; remove it to measure again")
    return found


def correlations(end: Kept, count: int) -> Correlations:
    """The study on the learner of the end of a run."""
    network, train = end.learner.network, end.dataset.train
    rng = np.random.default_rng(0)
    layers = layers_of(network)
    products: dict[tuple[str, str], list[list[float]]] = {(kind, c): [] for kind in KINDS for c in CLASSES}
    done = 0
    for samples in end.recall(count, end.stream.tasks):
        with evaluating(network):
            for image, target, label in zip(samples.images, samples.targets, samples.labels, strict=True):
                chosen = int(target.argmax())
                real = {}
                for with_class, number in zip(CLASSES, (int(label), chosen), strict=True):
                    one = rng.choice(np.flatnonzero(train.labels == number), 1)
                    x, y = as_batch(train, one)
                    real[with_class] = gradients(network, x, F.one_hot(y, len(target)).float())
                hard = F.one_hot(torch.tensor([chosen]), len(target)).float()
                for kind, wanted in zip(KINDS, (hard, target[None]), strict=True):
                    own = gradients(network, image[None], wanted)
                    for with_class in CLASSES:
                        values = [normalised_product(a, b) for a, b in zip(own, real[with_class], strict=True)]
                        products[kind, with_class].append(values)
                done += 1
    found = []
    for (kind, with_class), rows in products.items():
        table = np.array(rows)
        for layer, tensors in layers.items():
            means = table[:, tensors].mean(axis=1)
            found.append(Correlation(layer, kind, with_class, float(means.mean()), float(means.std(ddof=1))))
    return Correlations(done, found, end.seed, end.share)


def gradients(network: nn.Module, x: Tensor, targets: Tensor) -> list[Tensor]:
    """The gradient of the cross-entropy to these probabilities, one tensor for each parameter."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    with torch.enable_grad():
        loss = F.cross_entropy(network(x), targets)
        return list(torch.autograd.grad(loss, parameters))


def normalised_product(a: Tensor, b: Tensor) -> float:
    """The cosine of the angle between two gradients; 0 if one of them vanishes.

    >>> normalised_product(torch.tensor([3.0, 0.0]), torch.tensor([4.0, 4.0]))
    0.7071067690849304
    """
    return float(F.cosine_similarity(a.flatten(), b.flatten(), dim=0, eps=1e-30))


def layers_of(network: nn.Module) -> dict[str, list[int]]:
    """The paper's layers, each with the numbers of its parameter tensors; in any other network, its modules."""
    names = [name for name, p in network.named_parameters() if p.requires_grad]
    if any(name.startswith("stages.") for name in names):
        words = [_resnet_layer(name) for name in names]
    else:
        modules = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
        words = [f"FC {modules.index(name.rpartition('.')[0]) + 1}" for name in names]
    layers = {word: [number for number, other in enumerate(words) if other == word] for word in dict.fromkeys(words)}
    return layers | {"All": list(range(len(names)))}


def _resnet_layer(name: str) -> str:
    """Two blocks make a stage."""
    first, second = name.split(".")[:2]
    if first == "stages":
        return f"Conv {int(second) // 2 + 2}"
    return "Conv 1" if first == "stem" else "FC"


def _table(dataset: str, measured: Correlations) -> Table:
    lines = [[layer, *_cells(dataset, measured, layer)] for layer in measured.layers]
    columns = [f"{kind}, {with_class}" for kind in KINDS for with_class in CLASSES]
    header = ["layer", *(word for column in columns for word in (column, f"{column}, published"))]
    title = f"Correlation of the gradients of {measured.images:,} recalled and real images, {DATASETS[dataset]}"
    part = "" if measured.share == 1 else f", which learned from {percent(measured.share)}"
    notes = [
        "Mean ± standard deviation over recalled images. Hard or soft: the targets of the recalled images. "
        f"The network is that of seed {measured.seed}{part}."
    ]
    return Table(title, header, lines, notes)


def _cells(dataset: str, measured: Correlations, layer: str) -> Iterator[Cell]:
    published = PUBLISHED[dataset].get(layer, ("",) * 4)
    cases = ((kind, with_class) for kind in KINDS for with_class in CLASSES)
    for (kind, with_class), printed in zip(cases, published, strict=True):
        value = measured.value(layer, kind, with_class)
        yield Figure(value.mean, value.deviation, digits=3)
        yield printed.replace("-", "−")
