"""Every method on the same fixed features, with the same network on top: a study of our own, not of the paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...presets import PRESETS
from ..table import Cell, Figure, Table
from .study import Place, Row, Study, part_of, share_of, write_table

DATASETS = {"mnist": "MNIST-5k", "cifar10": "CIFAR10"}
RATES = (0.003, 0.01, 0.03, 0.1, 0.3)


@dataclass(frozen=True)
class Case:
    """A method: its preset on each dataset, the learning rate that was chosen there, and what else is changed."""

    label: str
    presets: Mapping[str, str]
    chosen: Mapping[str, float]
    changed: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    rate: str = "learner.learning_rate"

    def row(self, dataset: str, rate: float, seeds: int, fraction: float, split: str) -> Row:
        """The runs with this rate, on the descriptor that `gaussians` has there."""
        name = f"{dataset}/{self.presets[dataset]}"
        network = PRESETS[f"{dataset}/gaussians"].config.network
        # Tests over training would take longer than to learn.
        settings = {"network": network, "split": split, "curve_points": 0, **self.changed.get(dataset, {})}
        return Row.of(self.label, name, seeds, fraction, {**settings, self.rate: rate})


def _both(name: str) -> dict[str, str]:
    return dict.fromkeys(DATASETS, name)


def _replay(mnist: int, cifar10: int) -> dict[str, dict[str, object]]:
    """Experience replay of so many images, which enter the network as they do elsewhere."""
    kept = {"mnist": mnist, "cifar10": cifar10}
    return {name: {"learner.kept_images": images, "learner.input_range": "unit"} for name, images in kept.items()}


_ER = {"mnist": "er-50", "cifar10": "er-200"}
# Steps of ARM's ascent that were made for pixels are too long for features that edges change quickly.
_SHORT_STEPS: dict[str, dict[str, object]] = {name: {"learner.recall_rate": 1.0} for name in DATASETS}
_NETWORK_ALONE: dict[str, dict[str, object]] = {name: {"learner.weight": 0.0} for name in DATASETS}

CASES = (
    Case("naive SGD", _both("naive"), {"mnist": 0.003, "cifar10": 0.3}),
    Case("ARM", _both("arm"), {"mnist": 0.01, "cifar10": 0.03}, _SHORT_STEPS),
    Case("mean shift", _both("mean-shift"), {"mnist": 0.01, "cifar10": 0.1}),
    Case("ER", _ER, {"mnist": 0.03, "cifar10": 0.03}, _replay(50, 200)),
    Case("ER, as many bytes as Gaussians", _ER, {"mnist": 0.03, "cifar10": 0.03}, _replay(500, 150)),
    Case(
        "Gaussian recall",
        _both("gaussians"),
        {"mnist": 0.3, "cifar10": 0.3},
        _NETWORK_ALONE,
        rate="learner.sample_rate",
    ),
    Case("stationary", _both("stationary"), {"mnist": 0.1, "cifar10": 0.1}),
)


class SameFeatures(Study):
    """What recall and replay are worth where features are equal."""

    name = "same-features"
    what = "ours: recall, replay and the stationary bound on the same fixed features and network"

    def rows(self, seeds: int, fraction: float) -> list[Row]:
        """Both datasets, and the rates that were tried on the validation images."""
        measured = [self._measured(case, dataset, seeds, fraction) for dataset in DATASETS for case in CASES]
        tried = [row for dataset in DATASETS for case in CASES for row in self._tried(case, dataset, fraction)]
        return measured + tried

    def write(self, place: Place, seeds: int, fraction: float) -> list[Path]:
        """One table per dataset, and one of the rates."""
        written: list[Path] = []
        for dataset, title in DATASETS.items():
            lines: list[list[Cell]] = []
            for case in CASES:
                runs = place.runs(self._measured(case, dataset, seeds, fraction))
                forgetting = [run.result.forgetting for run in runs if run.result.forgetting is not None]
                if runs:
                    memory = runs[0].result.memory
                    accuracy = Figure.over([run.result.accuracy for run in runs])
                    kept: list[Cell] = [memory.images, f"{memory.image_mb + memory.number_mb:.2f}"]
                    lines.append([case.label, *kept, len(runs), accuracy, Figure.over(forgetting)])
            if lines:
                header = ("method", "images kept", "MB kept", "seeds", "accuracy", "forgetting")
                title = part_of(f"The same descriptor and the same network, {title}", share_of(dataset, fraction))
                notes = ["Mean ± standard deviation over seeds, in percent, on the test images."]
                written += write_table(place, f"{self.name}-{dataset}", fraction, Table(title, header, lines, notes))
        return written + self._write_rates(place, fraction)

    def _write_rates(self, place: Place, fraction: float) -> list[Path]:
        lines: list[list[Cell]] = []
        for dataset, title in DATASETS.items():
            for case in CASES:
                found = [place.runs(row) for row in self._tried(case, dataset, fraction)]
                cells = [f"{runs[0].result.accuracy:.1f}" if runs else "" for runs in found]
                if any(cells):
                    lines.append([title, case.label, *cells, f"{case.chosen[dataset]:g}"])
        header = ("", "method", *(f"rate {rate:g}" for rate in RATES), "chosen")
        notes = ["Accuracy on the validation images, seed 0; empty where the run diverged or was not made."]
        table = Table("Learning rates on the same features", header, lines, notes)
        return write_table(place, f"{self.name}-rates", fraction, table) if lines else []

    def _measured(self, case: Case, dataset: str, seeds: int, fraction: float) -> Row:
        seeds = seeds if dataset == "mnist" else min(seeds, 3)
        return case.row(dataset, case.chosen[dataset], seeds, share_of(dataset, fraction), "test")

    def _tried(self, case: Case, dataset: str, fraction: float) -> list[Row]:
        return [case.row(dataset, rate, 1, share_of(dataset, fraction), "val") for rate in RATES]
