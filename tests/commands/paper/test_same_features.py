"""The study of methods on the same features, written from runs whose figures are known."""

from __future__ import annotations

import csv
from pathlib import Path

from autorecall import DescriptorConfig
from autorecall.commands.paper import STUDIES
from autorecall.commands.paper.same_features import CASES, RATES
from autorecall.commands.paper.study import Place
from autorecall.storage.schema import field_of

from .worlds import write_rows

ROOT = Path(__file__).parents[3]
STUDY = STUDIES["same-features"]


def test_all_methods_have_the_same_features_and_network() -> None:
    for dataset in ("mnist", "cifar10"):
        rows = [row for row in STUDY.rows(5, 1.0) if row.config.dataset == dataset]
        (network,) = {row.config.network for row in rows}
        assert isinstance(network, DescriptorConfig)
        assert network.hidden == (400, 400)


def test_rates_are_tried_on_validation_images_alone() -> None:
    rows = STUDY.rows(5, 1.0)
    tried = [row for row in rows if row.config.split == "val"]
    assert len(tried) == 2 * len(CASES) * len(RATES)
    assert {row.seeds for row in tried} == {1}
    assert {row.seeds for row in rows if row.config.split == "test"} == {5, 3}


def test_the_rate_that_was_chosen_is_the_best_of_those_that_were_tried() -> None:
    place = Place(ROOT / "results")
    for case in CASES:
        for dataset, chosen in case.chosen.items():
            share = 1.0 if dataset == "mnist" else 0.1
            runs = [run for rate in RATES for run in place.runs(case.row(dataset, rate, 1, share, "val"))]
            best = max(runs, key=lambda run: run.result.accuracy, default=None)
            assert best is None or field_of(best.config, case.rate) == chosen, (case.label, dataset)


def test_each_dataset_with_runs_has_a_table(tmp_path: Path) -> None:
    assert STUDY.write(Place(tmp_path), 2, 1.0) == []
    rows = [row for row in STUDY.rows(2, 1.0) if row.config.dataset == "mnist" and row.config.split == "test"]
    write_rows(tmp_path, rows, [[10.0 + number, 12.0 + number] for number in range(len(rows))])
    written = STUDY.write(Place(tmp_path), 2, 1.0)
    assert {path.name for path in written} == {f"same-features-mnist.{kind}" for kind in ("md", "tex", "csv")}
    with (tmp_path / "paper" / "same-features-mnist.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [line["method"] for line in lines] == [case.label for case in CASES]
    assert [float(line["accuracy"]) for line in lines] == [11.0 + number for number in range(len(CASES))]
