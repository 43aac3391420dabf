"""What the paper says it found, each with our number and whether it agrees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..rows import Run
from ..table import Table, signed
from .figures import DATASETS, Diversity, History, Suppressed
from .gradients import Gradients
from .study import Place, Row, Study, class_history, share_of, write_table
from .tables import Ablation, changes_by_seed

LITTLE = 1.0  # a point of accuracy hardly matters
CLEAR = 0.5  # a correlation of a few points that is no accident
FEWEST = 3  # streams to correlate anything with


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
        shortened = [
            study.rows(seeds, share_of("cifar10", fraction)) for study in (Ablation(), History(), Suppressed())
        ]
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
            "The name of a dataset means its whole stream; a tenth is the first tenth of every task. Changes are in "
            "points of accuracy."
        ]
        table = Table("What the paper found", header, lines, notes)
        return write_table(place, self.name, fraction, table) if lines else []


def _arm(seeds: int, fraction: float) -> Row:
    return Row.of("ARM", "cifar10/arm", seeds, fraction)


def named(dataset: str, share: float) -> str:
    """A dataset, and the part of its stream.

    >>> [named("cifar10", share) for share in (1.0, 0.1, 0.02)]
    ['CIFAR10', 'CIFAR10, a tenth', 'CIFAR10, 2 %']
    """
    part = {1.0: "", 0.1: ", a tenth"}.get(share, f", {100 * share:g} %")
    return f"{DATASETS[dataset]}{part}"


def _tenth(fraction: float) -> str:
    return named("cifar10", share_of("cifar10", fraction))


def _longest(study: Study, place: Place, seeds: int, fraction: float) -> float:
    """All of the stream that was asked for, if the study's runs on CIFAR10 are there, and else a tenth."""
    whole = all(place.runs(row) for row in study.rows(seeds, fraction))
    return fraction if whole else share_of("cifar10", fraction)


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
        f"{named('cifar10', fraction)}, during the last task: {words} % of the recalled images show tasks 1 to "
        f"{len(shares)}",
        bool(shares[0] > shares[1:].max()),
    )


def _first_is_kept(place: Place, seeds: int, fraction: float) -> Evidence | None:
    runs = place.runs(_arm(seeds, fraction))
    if not runs:
        return None
    final = np.mean([run.result.accuracy_matrix[-1] for run in runs], axis=0)
    words = ", ".join(f"{value:.0f}" for value in final)
    return Evidence(
        f"{named('cifar10', fraction)}, at the end: {words} % on tasks 1 to {len(final)}",
        bool(final[0] > final[1:].max()),
    )


def _unseen_are_avoided(place: Place, seeds: int, fraction: float) -> Evidence | None:
    """While tasks are still to come, against as many images as their share of the classes."""
    runs = place.runs(_arm(seeds, fraction))
    if not runs:
        return None
    tasks = len(runs[0].result.accuracy_matrix)
    unseen = fmean(recalled_by_task(run, task)[task + 1 :].sum() for run in runs for task in range(1, tasks - 1))
    even = fmean((tasks - task - 1) / tasks for task in range(1, tasks - 1))
    return Evidence(
        f"{named('cifar10', fraction)}: {100 * unseen:.1f} % of the recalled images show classes yet to come "
        f"({100 * even:.0f} % if all classes were recalled alike)",
        unseen < even / 2,
    )


def _target_over_originator(place: Place, seeds: int, fraction: float) -> Evidence | None:
    found = Gradients().known(place, fraction)
    pairs = {
        dataset: tuple(measured.value("All", "hard", name).mean for name in ("target", "originator"))
        for dataset, measured in found.items()
    }
    words = "; ".join(
        f"{named(name, fraction)} {target:.2f} against {other:.2f}" for name, (target, other) in pairs.items()
    )
    return Evidence(words, all(target > other for target, other in pairs.values())) if pairs else None


def _most_in_the_last_layer(place: Place, seeds: int, fraction: float) -> Evidence | None:
    words, agrees = [], True
    for dataset, measured in Gradients().known(place, fraction).items():
        means = [measured.value(layer, "hard", "target").mean for layer in measured.layers if layer != "All"]
        below = f"at most {max(means[:-1]):.2f} below it"
        words.append(f"{named(dataset, fraction)} {means[-1]:.2f} in the last layer, {below}")
        agrees &= means[-1] == max(means)
    return Evidence("; ".join(words), agrees) if words else None


def _changes(place: Place, seeds: int, fraction: float) -> dict[str, float]:
    """How far each change to ARM moves the accuracy, from the same seeds without it, at a tenth of the stream."""
    rows = Ablation().rows(seeds, share_of("cifar10", fraction))
    base, *changed = ((row.label, place.runs(row)) for row in rows)
    by_seed = {label: changes_by_seed(runs, base[1]) for label, runs in changed}
    return {label: fmean(changes) for label, changes in by_seed.items() if changes}


def _start_and_entropy(place: Place, seeds: int, fraction: float) -> Evidence | None:
    changes = _changes(place, seeds, fraction)
    wanted = ["λ3 = 0", "Start from noise"]
    if len(changes) < len(Ablation().rows(1, 1.0)) - 1:
        return None  # which of them matters most is not known yet
    worst = sorted(changes, key=lambda label: changes[label])
    ranks = [f"{label}: {signed(changes[label])} (rank {worst.index(label) + 1} of {len(worst)})" for label in wanted]
    lose = all(changes[label] < 0 for label in wanted)
    return Evidence(f"{_tenth(fraction)}: {', '.join(ranks)}", lose and set(worst[:2]) == set(wanted))


def _smoothing(place: Place, seeds: int, fraction: float) -> Evidence | None:
    changes = _changes(place, seeds, fraction)
    wanted = ("λ5 = 0", "λ6 = 0")
    if not all(label in changes for label in wanted):
        return None
    words = ", ".join(f"{label}: {signed(changes[label])}" for label in wanted)
    return Evidence(f"{_tenth(fraction)}: {words}", all(abs(changes[label]) < LITTLE for label in wanted))


def _twice(place: Place, seeds: int, fraction: float) -> Evidence | None:
    """What one and two recalls per step leave of the first task and of the others, over the seeds of both."""
    part = _longest(Suppressed(), place, seeds, fraction)
    rows = Suppressed().rows(seeds, part)
    found = [{run.config.seed: run for run in place.runs(replace(row, seeds=seeds))} for row in rows]
    shared = sorted(set.intersection(*map(set, found)))
    if not shared:
        return None
    (first, *others), (first_twice, *others_twice) = (
        np.mean([runs[seed].result.accuracy_matrix[-1] for seed in shared], axis=0) for runs in found
    )
    words = (
        f"{named('cifar10', part)}: from one to two, the first task goes from {first:.0f} to {first_twice:.0f} %, "
        f"the others from {fmean(others):.1f} to {fmean(others_twice):.1f} %"
    )
    return Evidence(words, fmean(others_twice) < fmean(others) and first_twice > first)


def _high_diversity(place: Place, seeds: int, fraction: float) -> Evidence | None:
    curves = Diversity().curves(place, seeds, fraction)
    found = {dataset: curves.get(f"{DATASETS[dataset]}, 10 classes") for dataset in ("mnist", "cifar10")}
    words, agrees = [], True
    for dataset, curve in found.items():
        if curve is not None:
            tried = "" if curve.complete else f" of {', '.join(f'{weight:g}' for weight, _ in curve.points)}"
            words.append(f"{named(dataset, share_of(dataset, fraction))}: best at λ3 = {curve.best:g}{tried}")
            agrees &= curve.best >= 16
    return Evidence("; ".join(words), agrees) if words else None


def _diversity_and_classes(place: Place, seeds: int, fraction: float) -> Evidence | None:
    """On the streams of one dataset, which differ in nothing else."""
    best = {
        int(stream.removeprefix("MNIST, ").removesuffix(" classes")): curve.best
        for stream, curve in Diversity().curves(place, seeds, fraction).items()
        if stream.startswith("MNIST") and curve.complete
    }
    if len(best) < FEWEST:
        return None
    weights = np.log(list(best.values()))
    correlation = float(np.corrcoef(list(best), weights)[0, 1]) if weights.std() else 0.0
    words = ", ".join(f"{weight:g} for {classes}" for classes, weight in best.items())
    sign = f"correlation of its logarithm with the number {signed(correlation, 2)}"
    return Evidence(f"{named('mnist', fraction)}: the best λ3 is {words} classes; {sign}", correlation < -CLEAR)


def _low_diversity_is_recent(place: Place, seeds: int, fraction: float) -> Evidence | None:
    """The share of the latest earlier task, while the last three tasks are learned."""
    part, found = _longest(History(), place, seeds, fraction), {}
    for row in History().rows(seeds, part):
        for run in place.runs(row):
            shares = [recalled_by_task(run, task) for task in range(2, len(run.result.accuracy_matrix))]
            found[row.label] = fmean(share[task - 1] / share[:task].sum() for task, share in enumerate(shares, start=2))
    labels = list(found)
    if len(labels) < 2:
        return None
    words = ", ".join(f"{100 * value:.0f} % at {label}" for label, value in found.items())
    return Evidence(
        f"{named('cifar10', part)}: the task before the present one has {words} of what is recalled of earlier tasks",
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
    words = f"{named('cifar10', fraction)}: task {task + 1} gains {gains[task]:.1f} points after its end; {many}"
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
