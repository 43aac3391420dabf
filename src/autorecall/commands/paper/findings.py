"""What the paper says it found, each with our number and whether it agrees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..rows import Run
from ..table import Table, signed
from .figures import DATASETS, Diversity, History, Suppressed
from .gradients import Gradients
from .study import Place, Row, Study, class_history, write_table
from .tables import Ablation, changes_by_seed

TENTH = 0.1  # of the stream, for what needs many runs on natural images
LITTLE = 1.0  # a point of accuracy hardly matters


@dataclass(frozen=True)
class Evidence:
    """A number of ours, in words, and whether it bears the paper out."""

    words: str
    agrees: bool


Look: TypeAlias = Callable[[Place, int, float], Evidence | None]


class Findings(Study):
    """One line for each thing that the paper says it found."""

    name = "findings"
    what = "what the paper found, with our number and whether it agrees"

    def rows(self, seeds: int, fraction: float) -> list[Row]:
        """The runs of the studies that it reads."""
        tenth = min(fraction, TENTH)
        shortened = [study.rows(seeds, tenth) for study in (Ablation(), History(), Suppressed())]
        return [_arm(seeds, fraction), *Diversity().rows(seeds, fraction), *(row for rows in shortened for row in rows)]

    def write(self, place: Place, seeds: int, fraction: float) -> list[Path]:
        """A table of what there are runs for."""
        looked = [(claim, look(place, seeds, fraction)) for claim, look in LOOKS]
        lines = [
            [claim, evidence.words, "yes" if evidence.agrees else "no"]
            for claim, evidence in looked
            if evidence is not None
        ]
        header = ("the paper found", "here", "agrees")
        notes = [
            "CIFAR10 means the whole stream unless a part is named; a tenth is the first of every task. Changes are in "
            "points of accuracy."
        ]
        table = Table("What the paper found", header, lines, notes)
        return write_table(place, self.name, fraction, table) if lines else []


def _arm(seeds: int, fraction: float) -> Row:
    return Row.of("ARM", "cifar10/arm", seeds, fraction)


def recalled_by_task(run: Run, during: int) -> NDArray[np.float64]:
    """The share of each task's classes among the images recalled during a task, which counts from 0."""
    shares = class_history(run)
    tasks = len(run.result.accuracy_matrix)
    steps = np.array_split(shares, tasks)[during]
    by_class = np.nan_to_num(steps[~np.isnan(steps).any(axis=1)]).mean(axis=0)
    return np.array([part.sum() for part in np.array_split(by_class / by_class.sum(), tasks)])


def _first_is_recalled(place: Place, seeds: int, fraction: float) -> Evidence | None:
    """During the last task, among the four before it."""
    runs = place.runs(_arm(seeds, fraction))
    if not runs:
        return None
    shares = np.mean([recalled_by_task(run, -1) for run in runs], axis=0)[:-1]
    words = ", ".join(f"{100 * share:.0f}" for share in shares)
    return Evidence(
        f"CIFAR10, during the last task: {words} % of the recalled images show tasks 1 to {len(shares)}",
        int(shares.argmax()) == 0,
    )


def _first_is_kept(place: Place, seeds: int, fraction: float) -> Evidence | None:
    runs = place.runs(_arm(seeds, fraction))
    if not runs:
        return None
    final = np.mean([run.result.accuracy_matrix[-1] for run in runs], axis=0)
    words = ", ".join(f"{value:.0f}" for value in final)
    return Evidence(f"CIFAR10, at the end: {words} % on tasks 1 to {len(final)}", int(final.argmax()) == 0)


def _unseen_are_avoided(place: Place, seeds: int, fraction: float) -> Evidence | None:
    """While tasks are still to come, against as many images as their share of the classes."""
    runs = place.runs(_arm(seeds, fraction))
    if not runs:
        return None
    tasks = len(runs[0].result.accuracy_matrix)
    unseen = fmean(recalled_by_task(run, task)[task + 1 :].sum() for run in runs for task in range(1, tasks - 1))
    even = fmean((tasks - task - 1) / tasks for task in range(1, tasks - 1))
    return Evidence(
        f"CIFAR10: {100 * unseen:.1f} % of the recalled images show classes yet to come, {100 * even:.0f} % of all",
        unseen < even / 2,
    )


def _target_over_originator(place: Place, seeds: int, fraction: float) -> Evidence | None:
    found = Gradients().known(place, fraction)
    pairs = {
        dataset: tuple(measured.value("All", "hard", name).mean for name in ("target", "originator"))
        for dataset, measured in found.items()
    }
    words = "; ".join(f"{DATASETS[name]} {target:.2f} against {other:.2f}" for name, (target, other) in pairs.items())
    return Evidence(words, all(target > other for target, other in pairs.values())) if pairs else None


def _most_in_the_last_layer(place: Place, seeds: int, fraction: float) -> Evidence | None:
    words, agrees = [], True
    for dataset, measured in Gradients().known(place, fraction).items():
        means = [measured.value(layer, "hard", "target").mean for layer in measured.layers if layer != "All"]
        words.append(f"{DATASETS[dataset]} {means[-1]:.2f} in the last layer, at most {max(means[:-1]):.2f} below it")
        agrees &= means[-1] == max(means)
    return Evidence("; ".join(words), agrees) if words else None


def _changes(place: Place, seeds: int, fraction: float) -> dict[str, float]:
    """How far each change to ARM moves the accuracy, from the same seeds without it, at a tenth of the stream."""
    base, *changed = ((row.label, place.runs(row)) for row in Ablation().rows(seeds, min(fraction, TENTH)))
    by_seed = {label: changes_by_seed(runs, base[1]) for label, runs in changed}
    return {label: fmean(changes) for label, changes in by_seed.items() if changes}


def _start_and_entropy(place: Place, seeds: int, fraction: float) -> Evidence | None:
    changes = _changes(place, seeds, fraction)
    wanted = ["λ3 = 0", "Start from noise"]
    if not changes.keys() >= set(wanted):
        return None
    worst = sorted(changes, key=lambda label: changes[label])
    ranks = [f"{label} {signed(changes[label])} (rank {worst.index(label) + 1} of {len(worst)})" for label in wanted]
    return Evidence(f"CIFAR10, a tenth: {', '.join(ranks)}", set(worst[:2]) == set(wanted))


def _smoothing(place: Place, seeds: int, fraction: float) -> Evidence | None:
    changes = _changes(place, seeds, fraction)
    wanted = ("λ5 = 0", "λ6 = 0")
    if not all(label in changes for label in wanted):
        return None
    words = ", ".join(f"{label} {signed(changes[label])}" for label in wanted)
    return Evidence(f"CIFAR10, a tenth: {words}", all(abs(changes[label]) < LITTLE for label in wanted))


def _twice(place: Place, seeds: int, fraction: float) -> Evidence | None:
    """What one and two recalls per step leave of the first task and of the others."""
    rows = Suppressed().rows(seeds, min(fraction, TENTH))
    ends = [
        np.mean([run.result.accuracy_matrix[-1] for run in runs], axis=0) for row in rows if (runs := place.runs(row))
    ]
    if len(ends) < len(rows):
        return None
    (first, *others), (first_twice, *others_twice) = ends
    words = (
        f"CIFAR10, a tenth: from one to two, the first task goes from {first:.0f} to {first_twice:.0f} %, "
        f"the others from {fmean(others):.1f} to {fmean(others_twice):.1f} %"
    )
    return Evidence(words, fmean(others_twice) < fmean(others) and first_twice > first)


def _best_diversity(place: Place, seeds: int, fraction: float) -> dict[str, float]:
    """The best λ3 of each stream."""
    streams = Diversity().points(place, seeds, fraction)
    return {stream: max(points, key=lambda point: point[1].value)[0] for stream, points in streams.items()}


def _high_diversity(place: Place, seeds: int, fraction: float) -> Evidence | None:
    best = _best_diversity(place, seeds, fraction)
    parts = {"MNIST, 10 classes": "MNIST", "CIFAR10, 10 classes": "CIFAR10, a tenth"}
    found = {part: best[stream] for stream, part in parts.items() if stream in best}
    words = "; ".join(f"{part}: best at λ3 = {weight:g}" for part, weight in found.items())
    return Evidence(words, all(weight >= 16 for weight in found.values())) if found else None


def _diversity_and_classes(place: Place, seeds: int, fraction: float) -> Evidence | None:
    """On the streams of one dataset, which differ in nothing else."""
    best = {
        int(stream.removeprefix("MNIST, ").removesuffix(" classes")): weight
        for stream, weight in _best_diversity(place, seeds, fraction).items()
        if stream.startswith("MNIST")
    }
    if len(best) < 2:
        return None
    weights = np.log(list(best.values()))
    correlation = float(np.corrcoef(list(best), weights)[0, 1]) if weights.std() else 0.0
    words = ", ".join(f"{weight:g} for {classes}" for classes, weight in best.items())
    sign = f"correlation of its logarithm with the number {signed(correlation)}"
    return Evidence(f"MNIST: the best λ3 is {words} classes; {sign}", correlation < 0)


def _low_diversity_is_recent(place: Place, seeds: int, fraction: float) -> Evidence | None:
    """The share of the latest earlier task, while the last three tasks are learned."""
    found = {}
    for row in History().rows(seeds, min(fraction, TENTH)):
        for run in place.runs(row):
            shares = [recalled_by_task(run, task) for task in range(2, len(run.result.accuracy_matrix))]
            found[row.label] = fmean(share[task - 1] / share[:task].sum() for task, share in enumerate(shares, start=2))
    labels = list(found)
    if len(labels) < 2:
        return None
    words = ", ".join(f"{100 * value:.0f} % at {label}" for label, value in found.items())
    return Evidence(
        f"CIFAR10, a tenth: the task before the present one has {words} of what is recalled of earlier tasks",
        found[labels[0]] > found[labels[-1]],
    )


def _backward_transfer(place: Place, seeds: int, fraction: float) -> Evidence | None:
    runs = place.runs(_arm(seeds, fraction))
    if not runs:
        return None
    matrix = np.mean([run.result.accuracy_matrix for run in runs], axis=0)
    gains = [float(matrix[task + 1 :, task].max() - matrix[task, task]) for task in range(len(matrix) - 1)]
    task = int(np.argmax(gains))
    many = f"{sum(gain > 0 for gain in gains)} of {len(gains)} gain"
    words = f"CIFAR10: task {task + 1} gains {gains[task]:.1f} points after its end; {many}"
    return Evidence(words, gains[task] > LITTLE)


LOOKS: Sequence[tuple[str, Look]] = (
    ("The first task is recalled most", _first_is_recalled),
    ("The first task is kept best", _first_is_kept),
    ("Some tasks gain after their own window (backward transfer)", _backward_transfer),
    ("Unseen classes are avoided, though nothing says so", _unseen_are_avoided),
    (
        "Gradients of recalled images are those of the target class, not of the originator class",
        _target_over_originator,
    ),
    ("Most of all in the highest layer", _most_in_the_last_layer),
    ("Real images to start from and the entropy term (λ3) matter most", _start_and_entropy),
    ("L2 norm and total variation (λ5, λ6) hardly matter", _smoothing),
    ("High λ3 is best for 10 classes", _high_diversity),
    ("The best λ3 is negatively correlated with the number of classes", _diversity_and_classes),
    ("Low λ3 prefers recent classes", _low_diversity_is_recent),
    ("Two recalls per step keep the first task and suppress the others", _twice),
)
