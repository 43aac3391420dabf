"""The tables for those who choose, from runs whose figures are known."""

from __future__ import annotations

import csv
from pathlib import Path

from autorecall.commands import costs
from autorecall.commands.paper import STUDIES
from autorecall.commands.paper.choosing import METHODS
from autorecall.commands.paper.study import Place

from .worlds import write_rows

STUDY = STUDIES["choosing"]


def test_settings_of_mnist_are_used_on_fashion_mnist(tmp_path: Path) -> None:
    rows = STUDY.rows(5, 1.0)
    assert [row.config.dataset for row in rows] == ["mnist", "fashion-mnist", "cifar10"] * len(METHODS)
    for small, fashion in zip(rows[::3], rows[1::3], strict=True):
        assert (small.config.learner, small.config.network) == (fashion.config.learner, fashion.config.network)
    folders = [Path(job.folder).relative_to(tmp_path) for job in Place(tmp_path).jobs(rows[1:2])]
    assert folders[0] == Path("fashion-mnist/patches+preset=mnist/seed-0")


def test_figures_come_from_the_runs(tmp_path: Path) -> None:
    rows = [row for row in STUDY.rows(2, 1.0) if row.preset in ("mnist/arm", "cifar10/arm")]
    assert [row.seeds for row in rows] == [2, 2, 2]
    write_rows(tmp_path, rows, [[40.0, 60.0], [30.0], []])
    written = STUDY.write(Place(tmp_path), 2, 1.0)
    figures, prices = (list(csv.DictReader(path.read_text().splitlines())) for path in written if path.suffix == ".csv")
    (line,), (price,) = figures, prices
    assert (line["method"], line["keeps"], line["seeds"]) == ("ARM", "an earlier network", "2 / 1 / -")
    assert (line["MNIST-5k"], line["Fashion-MNIST"], line["CIFAR10"]) == ("50.0", "30.0", "")
    assert round(float(line["MNIST-5k spread"]), 3) == 14.142
    assert (price["MB, MNIST"], price["MB, CIFAR10"]) == ("0.07", "")  # 0.07 of images, 0.004 of numbers
    assert float(price["ms, CIFAR10"]) == costs.CIFAR10["arm"]
