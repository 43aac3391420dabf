"""The paper's figures, drawn from runs written by hand."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from autorecall.commands import drawing
from autorecall.commands.paper import STUDIES
from autorecall.commands.paper.figures import binned, draw_histories
from autorecall.commands.paper.study import Place, class_history
from autorecall.commands.rows import read_run
from autorecall.errors import DataError
from autorecall.presets import PRESETS

from .worlds import write_rows, write_run


def drawn(name: str, place: Path) -> dict[str, Path]:
    """The files of a figure of two seeds, by their names."""
    rows = STUDIES[name].rows(2, 1.0)
    write_rows(place, rows, [[50.0 + number, 40.0 + number][: row.seeds] for number, row in enumerate(rows)])
    return {path.name: path for path in STUDIES[name].write(Place(place), 2, 1.0)}


@pytest.mark.parametrize("name", ["accuracy", "history", "suppressed", "diversity"])
def test_a_figure_is_drawn_as_png_and_pdf(name: str, tmp_path: Path) -> None:
    files = drawn(name, tmp_path)
    with Image.open(files[f"{name}.png"]) as picture:
        assert picture.size[0] > 800
        assert len(picture.convert("RGB").getcolors(100_000) or []) > 20  # something is drawn
    assert files[f"{name}.pdf"].read_bytes().startswith(b"%PDF")


def test_the_same_figure_gives_the_same_files(tmp_path: Path) -> None:
    files = drawn("history", tmp_path)
    before = {name: path.read_bytes() for name, path in files.items()}
    STUDIES["history"].write(Place(tmp_path), 2, 1.0)
    assert {name: path.read_bytes() for name, path in files.items()} == before


@pytest.mark.parametrize("name", STUDIES)
def test_without_runs_nothing_is_written(name: str, tmp_path: Path) -> None:
    assert STUDIES[name].write(Place(tmp_path), 2, 1.0) == []
    assert list(tmp_path.iterdir()) == []


def test_the_history_of_classes_is_empty_where_nothing_was_recalled(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "cifar10/arm", PRESETS["cifar10/arm"].config, 20.0)
    shares = class_history(read_run(folder))
    assert shares.shape == (100, 10)
    assert np.isnan(shares[0]).all()
    assert (shares[1:] == 0.1).all()


def test_histories_side_by_side_have_one_scale(tmp_path: Path) -> None:
    """A share of 0.4 is as bright beside one of 0.9 as that is elsewhere."""
    runs = []
    for row, share in zip(STUDIES["history"].rows(1, 1.0), (0.4, 0.9), strict=False):
        folder = write_run(tmp_path, row.preset, row.config, 20.0)
        shares = [share, 1 - share, *[0.0] * 8]
        lines = [f"{step}," + ",".join(map(str, shares)) for step in range(1, 101)]
        names = ",".join(f"recalled_class_{number}" for number in range(10))
        (folder / "history.csv").write_text("\n".join([f"step,{names}", *lines, ""]))
        runs.append(read_run(folder))
    axes = list(drawing.new_figure(4.0, 2.0).subplots(1, 2))
    images = draw_histories(axes, runs)
    assert [image.get_clim() for image in images] == [(0, 0.9)] * 2


def test_two_recalls_are_not_shown_without_one_for_contrast(tmp_path: Path) -> None:
    one, two = STUDIES["suppressed"].rows(1, 1.0)
    write_run(tmp_path, two.preset, two.config, 20.0)
    assert STUDIES["suppressed"].write(Place(tmp_path), 1, 1.0) == []
    write_run(tmp_path, one.preset, one.config, 20.0)
    assert len(STUDIES["suppressed"].write(Place(tmp_path), 1, 1.0)) == 2


def test_bins_keep_the_mean_over_time() -> None:
    values = np.random.default_rng(0).random((600, 3))
    assert binned(values, 150).shape == (150, 3)
    np.testing.assert_allclose(binned(values, 150).mean(axis=0), values.mean(axis=0))
    np.testing.assert_allclose(binned(values, 600), values)


@pytest.mark.parametrize("count", [1, 5, 7, 8, 20])
def test_every_line_has_a_colour_of_its_own(count: int) -> None:
    assert len(set(drawing.colours(count))) == count


def test_runs_that_were_tested_at_other_steps_are_not_averaged(tmp_path: Path) -> None:
    rows = [row for row in STUDIES["accuracy"].rows(2, 1.0) if row.preset.startswith("mnist/")]
    write_rows(tmp_path, rows, [[50.0, 40.0], [60.0, 55.0]])
    alone = {path: path.read_bytes() for path in STUDIES["accuracy"].write(Place(tmp_path), 1, 1.0)}
    for name in ("naive", "arm"):
        result = tmp_path / "mnist" / name / "seed-1" / "result.json"
        result.write_text(result.read_text().replace('"step": 50', '"step": 51'))
    assert {path: path.read_bytes() for path in STUDIES["accuracy"].write(Place(tmp_path), 2, 1.0)} == alone


@pytest.mark.parametrize(
    "content", [b"", b"step,loss\n1,2\n", b"recalled_class_0\nx\n", b"\xff\xfe", b"recalled_class_0\n"]
)
def test_a_damaged_history_is_named(tmp_path: Path, content: bytes) -> None:
    folder = write_run(tmp_path, "cifar10/arm", PRESETS["cifar10/arm"].config, 20.0)
    (folder / "history.csv").write_bytes(content)
    with pytest.raises(DataError, match=r"history\.csv is damaged"):
        STUDIES["history"].write(Place(tmp_path), 1, 1.0)


def test_a_pipe_instead_of_a_history_is_not_waited_for(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "cifar10/arm", PRESETS["cifar10/arm"].config, 20.0)
    (folder / "history.csv").unlink()
    os.mkfifo(folder / "history.csv")
    with pytest.raises(DataError):
        STUDIES["history"].write(Place(tmp_path), 1, 1.0)


def test_a_damaged_run_is_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "cifar10/arm", PRESETS["cifar10/arm"].config, 20.0)
    (folder / "result.json").write_text("{}")
    with pytest.raises(DataError, match="arm/seed-0"):
        STUDIES["history"].write(Place(tmp_path), 1, 1.0)
