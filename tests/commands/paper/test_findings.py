"""The paper's findings, each borne out or not by runs whose figures are known."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autorecall.commands.paper import STUDIES
from autorecall.commands.paper.findings import recalled_by_task
from autorecall.commands.paper.study import Place, Row
from autorecall.commands.rows import Run
from autorecall.storage.files import read_json, write_json

from .worlds import write_run

STUDY = STUDIES["findings"]
TASKS, STEPS = 5, 100


def shares_of(task: int, favourite: int, strength: float) -> list[float]:
    """Ten classes: some of the images show a favourite task, the rest all tasks up to the present one alike."""
    tasks = np.array([1.0 / (task + 1) if number <= task else 0.0 for number in range(TASKS)]) * (1 - strength)
    tasks[favourite] += strength
    return [share / 2 for share in tasks for _ in range(2)]


def write_known(out: Path, row: Row, last: list[float], favourite: int | None, strength: float = 0.5) -> None:
    """A run that ends with these accuracies and recalls this task most; None is the latest earlier one."""
    folder = write_run(out, row.preset, row.config, sum(last) / TASKS)
    result = read_json(folder / "result.json")
    assert isinstance(result, dict)
    rows = [[10.0 * (number <= task) for number in range(TASKS)] for task in range(TASKS - 1)]
    write_json(folder / "result.json", result | {"accuracy_matrix": [*rows, last]})
    lines = ["step," + ",".join(f"recalled_class_{number}" for number in range(10))]
    for step in range(STEPS):
        task = step * TASKS // STEPS
        wanted = favourite if favourite is not None else task - 1
        shares = [""] * 10 if task == 0 else [str(value) for value in shares_of(task, wanted, strength)]
        lines.append(f"{step + 1}," + ",".join(shares))
    (folder / "history.csv").write_text("\n".join(lines) + "\n")


def found(out: Path, seeds: int = 1, fraction: float = 1.0) -> dict[str, tuple[str, str]]:
    (path,) = (path for path in STUDY.write(Place(out), seeds, fraction) if path.suffix == ".csv")
    with path.open(newline="", encoding="utf-8") as file:
        return {line["the paper found"]: (line["here"], line["agrees"]) for line in csv.DictReader(file)}


def test_shares_of_tasks_are_means_over_the_steps_of_a_task(tmp_path: Path) -> None:
    row = STUDY.rows(1, 1.0)[0]
    write_known(tmp_path, row, [50.0, 1.0, 2.0, 3.0, 4.0], 0)
    (run,) = Place(tmp_path).runs(row)
    assert isinstance(run, Run)
    np.testing.assert_allclose(recalled_by_task(run, 1), [0.75, 0.25, 0, 0, 0])
    np.testing.assert_allclose(recalled_by_task(run, -1), [0.6, 0.1, 0.1, 0.1, 0.1])


@pytest.mark.parametrize("agrees", [True, False])
def test_a_finding_agrees_or_not_with_the_runs(tmp_path: Path, agrees: bool) -> None:
    arm = STUDY.rows(1, 1.0)[0]
    write_known(tmp_path, arm, [50.0, 12.0, 2.0, 3.0, 4.0] if agrees else [1.0, 5.0, 2.0, 3.0, 4.0], 0 if agrees else 3)
    tenth = {
        row.label: row for row in STUDY.rows(1, 1.0) if row.config.fraction == 0.1 and row.config.dataset == "cifar10"
    }
    ends = {row.label: 18.0 for row in STUDIES["ablation"].rows(1, 0.1)[1:]}
    ends |= {"λ3 = 0": 5.0, "Start from noise": 8.0, "λ5 = 0": 19.5, "λ6 = 0": 20.5, "S = 5 (halved)": 12.0}
    if not agrees:
        ends |= {"S = 5 (halved)": 1.0, "λ6 = 0": 24.0}
    del ends["Recall twice per batch"]  # which is below
    for label, accuracy in ends.items():
        write_known(tmp_path, tenth[label], [accuracy] * TASKS, 0)
    write_known(tmp_path, tenth["Baseline"], [20.0] * TASKS, 0)
    write_known(tmp_path, tenth["λ3 = 1"], [9.0] * TASKS, None if agrees else 0)
    write_known(tmp_path, tenth["two recalls per step"], [80.0, 0, 0, 0, 0] if agrees else [30.0] * TASKS, 0)
    lines = found(tmp_path)
    assert {verdict for _, verdict in lines.values()} == {"yes" if agrees else "no"}
    assert len(lines) == 8  # nothing is said of gradients, nor of λ3 with a single dataset of two weights
    assert "Two recalls per step keep the first task and suppress the others" in lines
    start = lines["Real images to start from and the entropy term (λ3) matter most"][0]
    assert "λ3 = 0: -15.0" in start
    assert "Start from noise: -12.0" in start


def test_the_best_weight_of_diversity_must_be_high(tmp_path: Path) -> None:
    write_accuracies(tmp_path, "MNIST, 10 classes", (10.0, 20.0, 30.0, 25.0, 40.0))
    lines = found(tmp_path)
    assert lines["High λ3 is best for 10 classes"] == ("MNIST: best at λ3 = 64", "yes")
    assert len(lines) == 1  # one stream says nothing about the number of classes


def test_weights_of_diversity_are_compared_over_the_seeds_that_all_of_them_have(tmp_path: Path) -> None:
    """The high weight is best on average, as it has a lucky seed that the others do not have."""
    low, middle, high, *_ = (row for row in STUDIES["diversity"].rows(1, 1.0) if row.label == "MNIST, 10 classes")
    for row, accuracies in ((low, (50.0, 30.0)), (middle, (20.0, 10.0)), (high, (40.0, 30.0, 90.0))):
        for seed, accuracy in enumerate(accuracies):
            write_run(tmp_path, row.preset, replace(row.config, seed=seed), accuracy)
    (curve,) = STUDIES["diversity"].curves(Place(tmp_path), 5, 1.0).values()  # type: ignore[attr-defined]
    assert (curve.best, curve.seeds, curve.complete) == (0.25, 2, False)
    lines = found(tmp_path, seeds=5)
    assert lines["High λ3 is best for 10 classes"] == ("MNIST: best at λ3 = 0.25 of 0.25, 1, 4", "no")


@pytest.mark.parametrize("better", [True, False])
def test_changes_that_help_do_not_matter_most(tmp_path: Path, better: bool) -> None:
    """The two that were named are ahead of all others, whichever way they go."""
    base, *changed = STUDIES["ablation"].rows(1, 0.1)
    write_run(tmp_path, base.preset, base.config, 20.0)
    for row in changed:
        named = row.label in ("λ3 = 0", "Start from noise")
        write_run(tmp_path, row.preset, row.config, (21.0 if better else 5.0) if named else 30.0)
    _, verdict = found(tmp_path)["Real images to start from and the entropy term (λ3) matter most"]
    assert verdict == ("no" if better else "yes")


def test_whole_streams_come_before_a_tenth_once_all_their_runs_are_there(tmp_path: Path) -> None:
    """On a tenth, low λ3 prefers recent classes and two recalls suppress the other tasks; on the whole, neither."""
    recent, twice = "Low λ3 prefers recent classes", "Two recalls per step keep the first task and suppress the others"

    def runs(fraction: float) -> list[Row]:  # one recall per step is the last row of `history`
        return [*STUDIES["history"].rows(1, fraction), STUDIES["suppressed"].rows(1, fraction)[1]]

    for row in runs(0.1):
        suppressed = row.label == "two recalls per step"
        last = [80.0, 0, 0, 0, 0] if suppressed else [30.0] * TASKS
        write_known(tmp_path, row, last, None if row.label == "λ3 = 1" else 0)
    for row in runs(1.0):
        lines = found(tmp_path)
        assert lines[twice][1] == "yes"
        write_known(tmp_path, row, [30.0] * TASKS, 0)
    assert lines[recent][0].startswith("CIFAR10: ")
    assert lines[recent][1] == "no"
    assert lines[twice][0].startswith("CIFAR10, a tenth: ")
    words, verdict = found(tmp_path)[twice]
    assert words.startswith("CIFAR10: from one to two, the first task goes from 30 to 30 %")
    assert verdict == "no"


def test_a_shortened_stream_is_named(tmp_path: Path) -> None:
    for row in STUDY.rows(1, 0.02):
        if row.label in ("ARM", "two recalls per step"):
            write_known(tmp_path, row, [50.0, 12.0, 2.0, 3.0, 4.0], 0)
    words = [here for here, _ in found(tmp_path, fraction=0.02).values()]
    assert len(words) == 5
    assert all(here.startswith("CIFAR10, 2 %") for here in words)


@pytest.mark.parametrize(
    ("accuracies", "best", "correlation", "agrees"),
    [
        ((1.0, 2.0, 4.0, 3.0, 0.0), 4, "-0.76", "yes"),
        ((1.0, 2.0, 3.0, 4.0, 5.0), 64, "+0.00", "no"),
    ],
)
def test_the_best_weight_of_diversity_must_fall_with_the_number_of_classes(
    tmp_path: Path, accuracies: tuple[float, ...], best: int, correlation: str, agrees: str
) -> None:
    write_accuracies(tmp_path, "MNIST, 4 classes", (10.0, 20.0, 30.0, 25.0, 40.0))
    write_accuracies(tmp_path, "MNIST, 10 classes", accuracies)
    claim = "The best λ3 is negatively correlated with the number of classes"
    write_accuracies(tmp_path, "MNIST, 8 classes", (5.0, 4.0, 3.0))  # where higher weights have not been tried
    assert claim not in found(tmp_path)
    write_accuracies(tmp_path, "MNIST, 6 classes", accuracies)
    words, verdict = found(tmp_path)[claim]
    assert words.startswith(f"MNIST: the best λ3 is 64 for 4, {best} for 6, {best} for 10 classes; ")
    assert words.endswith(f" {correlation}")
    assert verdict == agrees


def write_accuracies(out: Path, stream: str, accuracies: tuple[float, ...]) -> None:
    """Runs of one stream with the weights of diversity in their order."""
    rows = [row for row in STUDIES["diversity"].rows(1, 1.0) if row.label == stream]
    for row, accuracy in zip(rows, accuracies, strict=False):
        write_run(out, row.preset, row.config, accuracy)


def test_without_runs_nothing_is_written(tmp_path: Path) -> None:
    assert STUDY.write(Place(tmp_path), 1, 1.0) == []
