"""The tables: three main ones, distillation, ablation, and the choice of hyper-parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import ClassVar, TypeAlias

from ...learners.base import LearnerConfig
from ...presets import PRESETS, Published, share_of_images
from ...storage.schema import differences, field_of
from ..rows import Run
from ..table import Cell, Figure, Table, signed
from .study import Place, Row, Study, part_of, percent, share_of, write_table

NOT_PUBLISHED = " (not in the paper)"
LABELS = {
    "icarl": "iCaRL (5 iter)",
    "gem": "GEM",
    "lwf": "Distill (LwF)",
    "mean-shift": f"Mean shift{NOT_PUBLISHED}",
    "slda": f"Streaming LDA{NOT_PUBLISHED}",
    "gaussians": f"Class Gaussians{NOT_PUBLISHED}",
    "patches": f"Patch filters, streaming LDA{NOT_PUBLISHED}",
}
SPREADS = "Mean ± standard deviation over seeds, in percent; what ± means in the paper differs from row to row."
_BASELINE = Published(26.9, 1.1, 9.6, 3.7)  # ARM in the table of distillation; 26.4 ± 1.2 in the others
_COMPARED = ("accuracy", "published accuracy", "forgetting", "published forgetting")
MEMORY = "Memory: what is kept besides the network that is trained; 1 MB is 10⁶ bytes."


class MainTable(Study):
    """All methods on one dataset."""

    def __init__(self, dataset: str, title: str, chance: float) -> None:
        self.name, self.what = dataset, f"{title}: all methods, memory, accuracy and forgetting"
        self._title, self._chance = title, chance

    def rows(self, seeds: int, fraction: float) -> list[Row]:
        """Every row of the paper's table, and those of our own."""
        names = [name for name in PRESETS if name.startswith(f"{self.name}/") and is_of_main_table(name)]
        return [Row.of(label_of(name), name, seeds, fraction) for name in names]

    def write(self, place: Place, seeds: int, fraction: float) -> list[Path]:
        """Measured beside published."""
        found = [(row, *_of_most_images(runs)) for row in self.rows(seeds, fraction) if (runs := place.runs(row))]
        if not found:
            return []
        lines, shares = [], {percent(share) for _, _, share in found}
        for row, runs, share in found:
            labelled = row if len(shares) == 1 or share == 1 else replace(row, label=f"{row.label}, {percent(share)}")
            lines.append(self._line(labelled, runs, fraction == 1 and share == 1))
        header = ("method", "images", "their MB", "parameters", "MB", "M", "seeds", *_COMPARED)
        title = self._title if len(shares) > 1 or share == 1 else f"{self._title}, {percent(share)}"
        notes = [f"† Stationary: all classes mixed. Chance is {self._chance:g} %.", MEMORY, SPREADS]
        if shares != {percent(1)}:
            notes.append("The published figures are of all images: they say little about those of a part.")
        return write_table(place, self.name, fraction, Table(part_of(title, fraction), header, lines, notes))

    def _line(self, row: Row, runs: Sequence[Run], comparable: bool) -> list[Cell]:
        memory, published = runs[0].result.memory, PRESETS[row.preset].published
        forgetting = [run.result.forgetting for run in runs if run.result.forgetting is not None]
        return [
            row.label,
            memory.images,
            f"{memory.image_mb:.2f}",
            memory.numbers,
            f"{memory.number_mb:.2f}",
            _replayed(row.config.learner),
            len(runs),
            *_beside([run.result.accuracy for run in runs], published, "accuracy", comparable),
            *_beside(forgetting, published, "forgetting", comparable),
        ]


class PublishedOrder(Study):
    """MNIST in the order that the published figures of naive, LwF, ADI and ARM come from."""

    name = "order"
    what = "MNIST in the order of the published streams, see docs/results.md"
    _POOL: ClassVar = (5627, 6405, 5660, 5824, 5550, 5150, 5622, 5952, 5558, 5652)  # MNIST less validation images
    _METHODS: ClassVar = ("naive", "lwf", "adi", "arm", "gen", "gen-mir")

    def rows(self, seeds: int, fraction: float) -> list[Row]:
        """The rows that keep no image."""
        names = [f"mnist/{method}" for method in self._METHODS]
        return [Row.of(label_of(name), name, seeds, fraction, {"stream.class_pool": self._POOL}) for name in names]

    def write(self, place: Place, seeds: int, fraction: float) -> list[Path]:
        """Measured beside published; GEN was published in an even order."""
        lines: list[list[Cell]] = []
        for row in self.rows(seeds, fraction):
            runs = place.runs(row)
            published = PRESETS[row.preset].published if "gen" not in row.preset else None
            forgetting = [run.result.forgetting for run in runs if run.result.forgetting is not None]
            if runs:
                accuracy = _beside([run.result.accuracy for run in runs], published, "accuracy", fraction == 1)
                compared = accuracy + _beside(forgetting, published, "forgetting", fraction == 1)
                lines.append([row.label, len(runs), *compared])
        title = part_of("Sequential MNIST, classes arrive in the proportions of all of MNIST", fraction)
        table = Table(title, ("method", "seeds", *_COMPARED), lines, [SPREADS])
        return write_table(place, self.name, fraction, table) if lines else []


# A preset, the part of the stream, what else is changed, a setting, and the values to try.
Case: TypeAlias = tuple[str, float, Mapping[str, float], str, Sequence[float]]


class Choices(Study):
    """Settings that the paper does not give."""

    name = "choices"
    what = "settings that the paper leaves open, as they were chosen on the validation images"
    _TRIED: ClassVar[tuple[Case, ...]] = (
        ("cifar10/icarl", 0.1, {}, "learner.learning_rate", (0.03, 0.1, 0.3)),
        ("cifar10/gem", 0.1, {"learner.margin": 0.0}, "learner.learning_rate", (0.01, 0.03, 0.1)),
        ("cifar10/gem", 0.1, {}, "learner.margin", (0.0, 0.5, 1.0)),
        ("mnist/slda", 1.0, {}, "network.width", (2.0, 5.0, 10.0, 20.0, 40.0, 80.0)),
        ("mnist/slda", 1.0, {}, "learner.shrinkage", (0.0001, 0.001, 0.01, 0.03, 0.1)),
        ("cifar10/slda", 0.3, {}, "network.width", (5.0, 10.0, 20.0, 40.0, 80.0)),
        ("miniimagenet/slda", 1.0, {}, "network.width", (20.0, 50.0, 100.0)),
    )

    def rows(self, seeds: int, fraction: float) -> list[Row]:
        """One setting at a time, one seed."""
        return [row for case in self._TRIED for row in self._values(case, fraction)]

    def write(self, place: Place, seeds: int, fraction: float) -> list[Path]:
        """A line for each setting, the value of the preset in brackets."""
        lines: list[list[Cell]] = []
        for case in self._TRIED:
            preset, share, others, name, values = case
            usual = field_of(PRESETS[preset].config, name)
            found = [place.runs(row) for row in self._values(case, fraction)]
            if all(found):
                tried = [f"[{value:g}]" if value == usual else f"{value:g}" for value in values]
                accuracies = [f"{runs[0].result.accuracy:.1f}" for runs in found]
                rest = "".join(f", {key.split('.')[-1]} {value:g}" for key, value in others.items())
                setting = name.split(".")[-1].replace("_", " ")
                part = f"{100 * share * fraction:g} %"
                images = share_of_images(found[0][0].config, found[0][0].result.steps)
                part += "" if images == 1 else f", {percent(images)}"
                lines.append([preset + rest, part, setting, ", ".join(tried), ", ".join(accuracies)])
        header = ("row", "of the stream", "setting", "values, the preset's in brackets", "accuracy on validation")
        return (
            write_table(place, self.name, fraction, Table("Chosen on the validation images", header, lines))
            if lines
            else []
        )

    def _values(self, case: Case, fraction: float) -> list[Row]:
        preset, share, others, name, values = case
        settings: list[dict[str, object]] = [{"split": "val", **others, name: value} for value in values]
        return [Row.of(preset, preset, 1, share * fraction, changed) for changed in settings]


class Distillation(Study):
    """Unit lag, and learning without the real batch."""

    name = "distillation"
    what = "CIFAR10: baseline, unit lag and no distillation, for LwF, ADI and ARM"
    _CASES: ClassVar = (("Baseline", ""), ("Unit lag (T = 1)", "-unit-lag"), ("No distill", "-no-distill"))
    _METHODS: ClassVar = (("Distill (LwF)", "lwf"), ("ADI", "adi"), ("ARM", "arm"))

    def rows(self, seeds: int, fraction: float) -> list[Row]:
        """Three methods, three cases; LwF is nothing but distillation."""
        names = [f"cifar10/{method}{case}" for _, case in self._CASES for _, method in self._METHODS]
        return [Row.of(name, name, seeds, fraction) for name in names if name in PRESETS]

    def write(self, place: Place, seeds: int, fraction: float) -> list[Path]:
        """A line for each case, measured beside published."""
        found = {row.preset: place.runs(row) for row in self.rows(seeds, fraction)}
        if not any(found.values()):
            return []
        lines: list[list[Cell]] = []
        for label, case in self._CASES:
            line: list[Cell] = [label]
            for _, method in self._METHODS:
                name = f"cifar10/{method}{case}"
                published = _BASELINE if name == "cifar10/arm" else PRESETS[name].published if name in PRESETS else None
                values = [run.result.accuracy for run in found.get(name, [])]
                line += _beside(values, published, "accuracy", fraction == 1)
            counts = (len(found.get(f"cifar10/{method}{case}", ())) for _, method in self._METHODS)
            lines.append([*line, " / ".join(map(str, counts))])
        methods = (word for method, _ in self._METHODS for word in (method, f"{method}, published"))
        header = ["", *methods, "seeds"]
        return write_table(
            place, self.name, fraction, Table(part_of("Accuracy on CIFAR10", fraction), header, lines, [SPREADS])
        )


class Ablation(Study):
    """Thirteen changes to ARM."""

    name = "ablation"
    what = "CIFAR10: thirteen changes to ARM"
    _LABELS: ClassVar = {
        "no-avoidance": "λ1 = 0, λ2 = 0",
        "no-diversity": "λ3 = 0",
        "no-uncertainty": "λ4 = 0",
        "no-l2-norm": "λ5 = 0",
        "no-total-variation": "λ6 = 0",
        "150-images": "M = 150 (+50)",
        "50-images": "M = 50 (−50)",
        "20-steps": "S = 20 (doubled)",
        "5-steps": "S = 5 (halved)",
        "cross-entropy": "Cross-entropy as D",
        "noise": "Start from noise",
        "recall-2-times": "Recall twice per batch",
        "recall-4-times": "Recall four times per batch",
    }

    def rows(self, seeds: int, fraction: float) -> list[Row]:
        """The baseline and the changes."""
        changed = [(label, f"cifar10/ablation-{name}") for name, label in self._LABELS.items()]
        return [Row.of(label, name, seeds, fraction) for label, name in [("Baseline", "cifar10/arm"), *changed]]

    def write(self, place: Place, seeds: int, fraction: float) -> list[Path]:
        """Accuracy, how far it is from the baseline, and forgetting, measured and published."""
        rows = [(row, place.runs(row)) for row in self.rows(seeds, fraction)]
        base = rows[0][1]
        usual = PRESETS["cifar10/arm"].published
        if not base:
            return []
        assert usual is not None
        lines: list[list[Cell]] = []
        for row, runs in rows:
            published = PRESETS[row.preset].published
            if not runs:
                continue
            assert published is not None
            forgetting = [run.result.forgetting for run in runs if run.result.forgetting is not None]
            first = row.preset == "cifar10/arm"
            lines.append(
                [
                    row.label,
                    len(runs),
                    *_beside([run.result.accuracy for run in runs], published, "accuracy", fraction == 1)[:1],
                    None if first else Figure.over(changes_by_seed(runs, base), change=True),
                    _printed(published, "accuracy"),
                    None if first else signed(published.accuracy - usual.accuracy),
                    *_beside(forgetting, published, "forgetting", fraction == 1),
                ]
            )
        header = ("", "seeds", "accuracy", "change", "published accuracy", "published change", *_COMPARED[2:])
        notes = ["Change: difference in accuracy from the baseline of the same seed, in points.", SPREADS]
        title = part_of("Ablation of ARM on CIFAR10", fraction)
        return write_table(place, self.name, fraction, Table(title, header, lines, notes))


class Selection(Study):
    """Hyper-parameters chosen on the validation images."""

    name = "select"
    what = "λ1 to λ4 of ARM by grid search on the validation images, beside the paper's choice"
    _GRID: ClassVar = {
        "teacher_avoidance": (0.1, 1.0),
        "student_avoidance": (0.1, 1.0),
        "diversity": (1.0, 16.0),
        "uncertainty": (0.1, 1.0),
    }
    _DATASETS: ClassVar = ("mnist", "cifar10")

    def rows(self, seeds: int, fraction: float) -> list[Row]:
        """A grid for each dataset."""
        found = []
        for dataset, values in product(self._DATASETS, product(*self._GRID.values())):
            settings: dict[str, object] = {
                f"learner.{name}": value for name, value in zip(self._GRID, values, strict=True)
            }
            share = share_of(dataset, fraction)
            found.append(Row.of(dataset, f"{dataset}/arm", seeds, share, {"split": "val"} | settings))
        return found

    def write(self, place: Place, seeds: int, fraction: float) -> list[Path]:
        """One table per dataset, best first."""
        written: list[Path] = []
        for dataset in self._DATASETS:
            lines: list[tuple[float, list[Cell]]] = []
            for row in self.rows(seeds, fraction):
                runs = place.runs(row) if row.label == dataset else []
                accuracy = Figure.over([run.result.accuracy for run in runs])
                if accuracy is None:
                    continue
                changed = set(differences(row.config, PRESETS[row.preset].config)) - {"split", "fraction"}
                settings = [f"{getattr(row.config.learner, name):g}" for name in self._GRID]
                lines.append(
                    (accuracy.value, [*settings, len(runs), accuracy, "" if changed else "the paper's choice"])
                )
            if lines:
                header = ("λ1", "λ2", "λ3", "λ4", "seeds", "accuracy on validation", "")
                title = part_of(f"ARM on the validation images of {dataset}", share_of(dataset, fraction))
                best = [line for _, line in sorted(lines, key=lambda line: -line[0])]
                written += write_table(place, f"{self.name}-{dataset}", fraction, Table(title, header, best, [SPREADS]))
        return written


def changes_by_seed(runs: Sequence[Run], base: Sequence[Run]) -> list[float]:
    """How far the accuracy of each run is from that of the baseline with its seed, as far as there is one."""
    usual = {run.config.seed: run.result.accuracy for run in base}
    return [run.result.accuracy - usual[run.config.seed] for run in runs if run.config.seed in usual]


def is_of_main_table(name: str) -> bool:
    """Whether a preset is a row of the table of its dataset, and not of another."""
    return not any(part in name for part in ("ablation-", "-unit-lag", "-no-distill"))


def label_of(preset: str) -> str:
    """What a row is called in tables."""
    name = preset.split("/")[1]
    if name in ("naive", "stationary"):
        return "Naive SGD" + "†" * (name == "stationary")
    return LABELS.get(name) or "-".join(part.upper() for part in name.split("-") if not part.isdecimal())


def _of_most_images(runs: Sequence[Run]) -> tuple[list[Run], float]:
    """Of a row's runs those that learned from most images, and their share of the paper's."""
    shares = [share_of_images(run.config, run.result.steps) for run in runs]
    return [run for run, share in zip(runs, shares, strict=True) if share == max(shares)], max(shares)


def _replayed(learner: LearnerConfig) -> Cell:
    """M: the images that a step replays or recalls."""
    for name in ("recalled_images", "replayed"):
        if hasattr(learner, name) and learner.method not in ("icarl", "gem"):
            return int(getattr(learner, name))
    groups = getattr(learner, "groups", None)
    return 10 * int(groups) if groups is not None else 0 if learner.method == "naive" else "-"


def _beside(values: Sequence[float], published: Published | None, what: str, comparable: bool) -> list[Cell]:
    """Measured and published; marked if the mean is outside what was published."""
    measured = Figure.over(values)
    if published is None or getattr(published, what) is None:
        return [measured, None]
    mean, spread = getattr(published, what), getattr(published, f"{what}_spread")
    if measured is not None and comparable and abs(measured.value - mean) > spread + 0.05:  # the print is rounded
        measured = Figure(measured.value, measured.spread, marked=True)
    return [measured, _printed(published, what)]


def _printed(published: Published, what: str) -> str | None:
    """A figure as the paper prints it."""
    mean, spread = getattr(published, what), getattr(published, f"{what}_spread")
    return None if mean is None else f"{mean} ± {spread}" if spread is not None else f"{mean}"
