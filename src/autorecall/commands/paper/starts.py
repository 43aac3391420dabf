"""What recall starts from, what it learns and what distillation adds: a study of our own, not of the paper."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, TypeAlias

from ..table import Cell, Figure, Table
from .study import Place, Row, Study, part_of, share_of, write_table

# What images start as, whether they ascend, what is learned on them, the weight of distillation, and how to run it.
Case: TypeAlias = tuple[str, str, str, float, str, Mapping[str, object]]

REAL, NOISE, SHIFT = "real images", "noise", "shifted images"
PAPER, TOLD, NONE = "as published", "told a class", "none"
TEACHER, LABEL = "the teacher's answer", "the class told"


class RecallStarts(Study):
    """One change at a time between ARM and mean-shift recall."""

    name = "recall-starts"
    what = "ours: what start, target and distillation bring to ARM, and mean-shift recall"
    _SMALL: ClassVar[Mapping[str, object]] = {"learner.recalled_images": 10, "learner.recall_rate": 1.0}

    def rows(self, seeds: int, fraction: float) -> list[Row]:
        """Both datasets."""
        return [row for dataset in ("mnist", "cifar10") for row in self._of(dataset, seeds, fraction)]

    def write(self, place: Place, seeds: int, fraction: float) -> list[Path]:
        """One table per dataset, of the runs that there are."""
        written: list[Path] = []
        for dataset, title in (("mnist", "MNIST-5k"), ("cifar10", "CIFAR10")):
            lines: list[list[Cell]] = []
            for case, row in zip(_cases(dataset), self._of(dataset, seeds, fraction), strict=True):
                runs = place.runs(row)
                forgetting = [run.result.forgetting for run in runs if run.result.forgetting is not None]
                if runs:
                    start, ascent, target, distillation, *_ = case
                    accuracy = Figure.over([run.result.accuracy for run in runs])
                    distilled = f"{distillation:g}" if distillation else "no"
                    lines.append(
                        [start, ascent, target, distilled, row.label, len(runs), accuracy, Figure.over(forgetting)]
                    )
            if lines:
                header = ("start", "ascent", "target", "distillation", "", "seeds", "accuracy", "forgetting")
                title = part_of(f"What recall starts from and learns, {title}", share_of(dataset, fraction))
                notes = ["Mean ± standard deviation over seeds, in percent, on the test images."]
                written += write_table(place, f"{self.name}-{dataset}", fraction, Table(title, header, lines, notes))
        return written

    def _of(self, dataset: str, seeds: int, fraction: float) -> list[Row]:
        seeds, share = (seeds if dataset == "mnist" else min(seeds, 3)), share_of(dataset, fraction)
        rows = []
        for *_, distillation, method, changed in _cases(dataset):
            # Tests over training would take a fifth of the time on CIFAR10.
            settings, label = {"curve_points": 0, **changed}, "mean shift"
            if method == "arm":
                settings |= {"learner.real_weight": distillation, **({} if dataset == "mnist" else self._SMALL)}
                label = "ARM"
            if changed or (method == "arm" and not distillation):
                label = ""
            rows.append(Row.of(label, f"{dataset}/{method}", seeds, share, settings))
        return rows


def _cases(dataset: str) -> list[Case]:
    told: dict[str, object] = {"learner.told": True}
    label, noise = told | {"learner.targets": "told"}, {"learner.initial": "noise"}
    shift: dict[str, object] = {"learner.initial": "shift"}
    cases: list[Case] = [
        (REAL, PAPER, TEACHER, 1.0, "arm", {}),
        (REAL, PAPER, TEACHER, 0.0, "arm", {}),
        (NOISE, PAPER, TEACHER, 1.0, "arm", noise),
        (REAL, TOLD, TEACHER, 1.0, "arm", told),
        (REAL, TOLD, LABEL, 1.0, "arm", label),
        (REAL, TOLD, LABEL, 0.5, "arm", label),
        (REAL, TOLD, LABEL, 0.0, "arm", label),
        (NOISE, TOLD, LABEL, 1.0, "arm", label | noise),
        (SHIFT, TOLD, LABEL, 1.0, "arm", label | shift),
        (SHIFT, TOLD, LABEL, 0.0, "arm", label | shift),
        (SHIFT, TOLD, TEACHER, 0.0, "arm", told | shift),
        (SHIFT, NONE, LABEL, 0.0, "mean-shift", {}),
    ]
    if dataset == "mnist":  # at ARM's rate and number of images
        same: dict[str, object] = {"learner.learning_rate": 0.05, "learner.recalled_images": 10}
        cases.insert(-1, (SHIFT, NONE, LABEL, 0.0, "mean-shift", same))
    return cases
