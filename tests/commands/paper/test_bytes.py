"""The study of what is kept: sizes in order, every method that has runs, a table for each dataset and one figure."""

from __future__ import annotations

import csv
from itertools import pairwise
from pathlib import Path

import pytest
from PIL import Image

from autorecall.commands.paper import STUDIES
from autorecall.commands.paper.study import Place, Row

from .worlds import write_rows

STUDY = STUDIES["bytes"]


@pytest.mark.parametrize(("dataset", "shape"), [("mnist", (1, 28, 28)), ("cifar10", (3, 32, 32))])
def test_sizes_grow_from_ten_thousand_numbers_to_ten_million(dataset: str, shape: tuple[int, ...]) -> None:
    kept = []
    for row in STUDY.rows(5, 1.0):
        if row.config.dataset == dataset:
            network = row.config.network.build(shape, 10)
            features = network.classify[-1].in_features  # type: ignore[index, union-attr]
            part = getattr(row.config.learner, "own_features", None) or 0
            statistics = 10 + 10 * features + features * (features + 1) // 2 + 10 * part * (part + 1) // 2
            kept.append(statistics + network.kept_numbers())  # type: ignore[operator]
    assert kept == sorted(kept)
    assert 8_000 < kept[0] < 10_000
    assert 9_000_000 < kept[-1] < 10_000_000
    assert all(later < 4 * earlier for earlier, later in pairwise(kept))


def test_methods_of_other_studies_are_beside_the_curve(tmp_path: Path) -> None:
    assert STUDY.write(Place(tmp_path), 2, 1.0) == []
    rows = [row for row in STUDY.rows(2, 1.0) if row.config.dataset == "mnist"]
    write_rows(tmp_path, rows, [[90.0 + number] for number in range(len(rows))])
    write_rows(tmp_path, [Row.of("", f"mnist/{name}", 2, 1.0) for name in ("arm", "slda")], [[50.0, 60.0], [93.0]])
    written = {path.name for path in STUDY.write(Place(tmp_path), 2, 1.0)}
    assert written == {"bytes.png", "bytes.pdf", *(f"bytes-mnist.{kind}" for kind in ("md", "tex", "csv"))}
    with (tmp_path / "paper" / "bytes-mnist.csv").open(newline="", encoding="utf-8") as file:
        lines = {(line["method"], line["filters"]): line for line in csv.DictReader(file)}
    assert len(lines) == len(rows) + 2
    assert [float(lines["ARM", ""][name]) for name in ("accuracy", "seeds", "MB")] == [55.0, 2.0, 0.07]
    assert float(lines["Patch filters", "50"]["accuracy"]) == 94.0
    with Image.open(tmp_path / "paper" / "bytes.png") as picture:
        assert picture.size[0] > 700
