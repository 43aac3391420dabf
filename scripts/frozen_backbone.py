"""Methods on top of a frozen backbone: a network is trained on five classes of CIFAR10, and they learn the other five.

    AUTORECALL_DATA=… python scripts/frozen_backbone.py        # about ten minutes of one core
    python scripts/frozen_backbone.py --table-only             # the table again, from the numbers that were found

The backbone sees all training images of the first five classes, for a few epochs, and is never trained again. Then
every method learns 500 images of each of the other five, ten at a time, two classes per task (one in the last), each
image once. Rates of the last layer are chosen on validation images. Numbers go to results/frozen-backbone.json as they
are found, so that an interrupted script goes on, and the table to results/paper.
"""

from __future__ import annotations

import argparse
import copy
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from autorecall import (
    PRESETS,
    SLDA,
    ARMConfig,
    Dataset,
    ERConfig,
    GaussiansConfig,
    LagConfig,
    Learner,
    NaiveConfig,
    load_dataset,
)
from autorecall.commands.paper.kept import numbers_in
from autorecall.commands.paper.study import Place, write_table
from autorecall.commands.table import Cell, Figure, Table
from autorecall.data import Split
from autorecall.metrics import forgetting, task_accuracy
from autorecall.storage.files import write_json
from autorecall.storage.schema import with_field
from autorecall.stream import as_batch
from autorecall.torch_state import limited_threads

ROOT = Path(__file__).parents[1]
NUMBERS = ROOT / "results" / "frozen-backbone.json"
KNOWN, NEW = range(5), range(5, 10)
TASKS = ((0, 1), (2, 3), (4,))  # of the new classes, numbered from 0
EPOCHS, EACH, TESTED, SEEDS = 3, 500, 500, 3  # images per class
RATES = (0.003, 0.01, 0.03, 0.1, 0.3)
KEPT_IMAGES = 100
Build: TypeAlias = Callable[[nn.Module, int, float | None], Learner]


@dataclass(frozen=True)
class Found:
    """How one method ended on one seed."""

    method: str
    seed: int
    split: str
    """The images that it was tested on: val for the choice of rates, test for the table."""
    rate: float | None
    """Of the last layer, where it takes steps."""
    accuracy: float
    """Mean over the five new classes, in percent."""
    forgetting: float | None
    megabytes: float
    """What it keeps beside network and backbone."""


@dataclass(frozen=True)
class Numbers:
    """Everything that the table says."""

    backbone_accuracy: float
    """On test images of the classes that it was trained on."""
    backbone_parameters: int
    found: list[Found]


def new_network(outputs: int) -> nn.Sequential:
    """Three convolutions, and a linear layer on 512 features."""
    widths = (3, 32, 64, 128)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
    backbone = nn.Sequential(*layers, nn.AvgPool2d(2), nn.Flatten())
    return nn.Sequential(OrderedDict(backbone=backbone, head=nn.Linear(4 * widths[-1], outputs)))


def part(split: Split, labels: range, each: int | None = None) -> Split:
    """The first images of some classes, which are numbered from 0."""
    chosen = np.sort(np.concatenate([np.flatnonzero(split.labels == label)[:each] for label in labels]))
    return Split(split.inputs[chosen], split.labels[chosen] - labels[0])


def trained_backbone(data: Dataset) -> nn.Sequential:
    """Trained on the first five classes as usual: shuffled, mirrored, in batches of 64, with momentum."""
    torch.manual_seed(0)
    network = new_network(len(KNOWN))
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images, rng = part(data.train, KNOWN), np.random.default_rng(0)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    steps = EPOCHS * (len(images) // 64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)
    for epoch in range(EPOCHS):
        order = rng.permutation(len(images))
        for start in range(0, len(order) - 63, 64):
            x, y = as_batch(images, order[start : start + 64])
            x = (x.flip(3) if rng.random() < 0.5 else x).to(memory_format=torch.channels_last)
            optimizer.zero_grad()
            F.cross_entropy(network(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
        print(f"backbone, epoch {epoch + 1} of {EPOCHS}", flush=True)
    return network


def predictions(answers: Callable[[Tensor], Tensor], images: Split) -> NDArray[np.int64]:
    """The most probable class of each image."""
    with torch.no_grad():
        batches = (as_batch(images, slice(start, start + 250))[0] for start in range(0, len(images), 250))
        return torch.cat([answers(x).argmax(1) for x in batches]).numpy()


def on_top(backbone: nn.Module, seed: int) -> nn.Sequential:
    """A new last layer on the frozen backbone, which stays in eval mode."""
    torch.manual_seed(seed)
    network = new_network(len(NEW))
    network.backbone = copy.deepcopy(backbone).requires_grad_(False)
    network.train()
    network.backbone.eval()
    return network


def _naive(backbone: nn.Module, seed: int, rate: float | None) -> Learner:
    return NaiveConfig(rate or 0).build(on_top(backbone, seed), seed)


def _er(backbone: nn.Module, seed: int, rate: float | None) -> Learner:
    return ERConfig(KEPT_IMAGES, rate or 0).build(on_top(backbone, seed), seed)


def _of_preset(name: str) -> Build:
    """A method with its settings for CIFAR10, except for the rate and for tasks, which are announced."""

    def build(backbone: nn.Module, seed: int, rate: float | None) -> Learner:
        config = with_field(PRESETS[name].config.learner, "learning_rate", rate)
        config = replace(config, lag=LagConfig("boundary")) if isinstance(config, ARMConfig) else config
        return config.build(on_top(backbone, seed), seed)

    return build


def _slda(backbone: nn.Module, seed: int, rate: float | None) -> Learner:
    return SLDA(on_top(backbone, seed), seed=seed)


def _gaussians(backbone: nn.Module, seed: int, rate: float | None) -> Learner:
    return GaussiansConfig().build(on_top(backbone, seed), seed)


def _patches(backbone: nn.Module, seed: int, rate: float | None) -> Learner:
    config = PRESETS["cifar10/patches"].config
    torch.manual_seed(seed)
    return config.learner.build(config.network.build((3, 32, 32), len(NEW)), seed)


@dataclass(frozen=True)
class Method:
    """A line of the table."""

    label: str
    build: Build
    trained: bool = True
    """Whether its last layer takes steps, at a rate to be chosen."""


METHODS = {
    "mixed": Method("naive SGD, all classes mixed", _naive),
    "naive": Method("naive SGD", _naive),
    "er": Method(f"ER, {KEPT_IMAGES} images", _er),
    "mean-shift": Method("mean shift", _of_preset("cifar10/mean-shift")),
    "slda": Method("streaming LDA", _slda, trained=False),
    "gaussians": Method("class Gaussians, closed form", _gaussians, trained=False),
    "patches": Method("patch filters, without the backbone", _patches, trained=False),
    "arm": Method("ARM", _of_preset("cifar10/arm")),
}


def stream(images: Split, method: str, seed: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The number of the task, and a batch of ten."""
    rng = np.random.default_rng(seed)
    tasks = (tuple(range(len(NEW))),) if method == "mixed" else TASKS
    for number, classes in enumerate(tasks):
        order = rng.permutation(np.flatnonzero(np.isin(images.labels, classes)))
        for start in range(0, len(order), 10):
            yield number, *as_batch(images, order[start : start + 10])


def learn(method: str, backbone: nn.Module, data: Dataset, split: str, seed: int, rate: float | None) -> Found:
    """One method on one seed, tested after every task."""
    learner = METHODS[method].build(backbone, seed, rate)
    images, test = part(data.train, NEW, EACH), part(data.val if split == "val" else data.test, NEW, TESTED)
    matrix: list[list[float]] = []
    before = 0
    learner.boundary()
    for number, x, y in stream(images, method, seed):
        if number != before:
            found = predictions(learner.predict, test)
            matrix.append([task_accuracy(found, test.labels, classes) for classes in TASKS])
            learner.boundary()
        before = number
        learner.observe(x, y)
    found = predictions(learner.predict, test)
    matrix.append([task_accuracy(found, test.labels, classes) for classes in TASKS])
    memory = learner.memory()
    megabytes = (memory.image_bytes + memory.parameter_bytes + memory.statistic_bytes) / 1e6
    overall = task_accuracy(found, test.labels, range(len(NEW)))
    return Found(method, seed, split, rate, overall, forgetting(matrix), megabytes)


def measure(data: Dataset, path: Path) -> None:
    """All that is not in the file yet."""
    network = trained_backbone(data)
    known = part(data.test, KNOWN)
    network.eval()
    share = task_accuracy(predictions(network, known), known.labels, KNOWN)
    backbone = network.get_submodule("backbone")
    parameters = sum(p.numel() for p in backbone.parameters())
    numbers = Numbers(share, parameters, numbers_in(path, Numbers).found if path.exists() else [])
    print(f"backbone: {share:.1f} % on the classes it was trained on", flush=True)

    def add(method: str, split: str, seed: int, rate: float | None) -> None:
        nonlocal numbers
        if (method, split, seed, rate) in [(each.method, each.split, each.seed, each.rate) for each in numbers.found]:
            return
        found = learn(method, backbone, data, split, seed, rate)
        numbers = replace(numbers, found=[*numbers.found, found])
        write_json(path, asdict(numbers))
        at = "" if rate is None else f", rate {rate:g}"
        print(f"{method}{at}, seed {seed}: {found.accuracy:.1f} % on {split}", flush=True)

    for name, method in METHODS.items():
        for rate in RATES if method.trained else ():
            add(name, "val", 0, rate)
        for seed in range(SEEDS):
            add(name, "test", seed, chosen_rate(numbers, name))


def chosen_rate(numbers: Numbers, method: str) -> float | None:
    """The best one on validation images; None if there is nothing to choose."""
    trials = [found for found in numbers.found if (found.method, found.split) == (method, "val")]
    return max(trials, key=lambda found: found.accuracy).rate if trials else None


def write(numbers: Numbers, place: Place) -> list[Path]:
    """The table."""
    lines: list[list[Cell]] = []
    for name, method in METHODS.items():
        rate = chosen_rate(numbers, name)
        runs = [found for found in numbers.found if (found.method, found.split, found.rate) == (name, "test", rate)]
        lost = [found.forgetting for found in runs if found.forgetting is not None]
        if runs:
            accuracy = Figure.over([found.accuracy for found in runs])
            chosen = "" if rate is None else f"{rate:g}"
            lines.append([method.label, chosen, len(runs), accuracy, Figure.over(lost), f"{runs[0].megabytes:.2f}"])
    lines.sort(key=lambda line: -line[3].value if isinstance(line[3], Figure) else 0)
    header = ("method", "rate", "seeds", "accuracy", "forgetting", "keeps, MB")
    title = "Five new classes of CIFAR10 on a backbone that was trained on the other five"
    notes = [
        f"Mean ± standard deviation over seeds, in percent, on {TESTED} test images of each new class; chance is 20 %. "
        f"The backbone reaches {numbers.backbone_accuracy:.1f} % on its own five classes and has "
        f"{numbers.backbone_parameters:,} parameters. Keeps: besides the network and the backbone."
    ]
    return write_table(place, "frozen-backbone", 1.0, Table(title, header, lines, notes))


def main() -> None:
    """Measure what is missing, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table-only", action="store_true", help="measure nothing")
    if not parser.parse_args().table_only:
        with limited_threads(1):
            measure(load_dataset("cifar10"), NUMBERS)
    for path in write(numbers_in(NUMBERS, Numbers), Place(ROOT / "results")):
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
