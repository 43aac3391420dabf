"""The picture of the last recalled batch, and nothing left where it cannot be drawn."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from autorecall.commands.pictures import draw_curves, draw_recalled
from autorecall.errors import AutorecallError, DataError
from autorecall.recall.batch import Recalled
from autorecall.runs.result import Point

from .worlds import result

INCH = 150  # pixels; a column is one inch wide


def recalled(images: Tensor, origins: Sequence[int] | None) -> Recalled:
    started = None if origins is None else torch.tensor(origins)
    return Recalled(images, counts=torch.ones(len(images), dtype=torch.int64), origins=started)


def drawn(
    path: Path,
    x: Tensor,
    images: Tensor,
    origins: Sequence[int] | None,
    classes: Sequence[str] = ("a", "b"),
    targets: Tensor | None = None,
) -> NDArray[np.uint8]:
    """The picture's pixels (height, width, 3), and a look at what lies in the folder.

    Where nothing else is said, the teacher takes recalled images for class 0, 1, 0, 1, …
    """
    if targets is None:
        targets = torch.eye(len(classes))[torch.arange(len(images)) % len(classes)]
    draw_recalled(path, x, recalled(images, origins), targets, classes)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


def inches(pixels: NDArray[np.uint8]) -> tuple[float, float]:
    height, width, _ = pixels.shape
    return width / INCH, height / INCH


def grey(pixels: NDArray[np.uint8]) -> bool:
    return bool((pixels == pixels[:, :, :1]).all())


def rows(pixels: NDArray[np.uint8], colour: tuple[int, int, int]) -> NDArray[np.intp]:
    """The row of each pixel of this colour."""
    return np.nonzero((pixels == np.array(colour, dtype=np.uint8)).all(axis=2))[0]


def count(pixels: NDArray[np.uint8], colour: tuple[int, int, int]) -> int:
    return len(rows(pixels, colour))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "recalled.png"


@pytest.mark.parametrize(("channels", "is_grey"), [(1, True), (3, False)], ids=["grey", "colour"])
def test_one_column_per_recalled_image(path: Path, channels: int, is_grey: bool) -> None:
    x = torch.rand(5, channels, 8, 8)
    pixels = drawn(path, x, torch.rand(5, channels, 8, 8), range(5))
    assert inches(pixels) == (5, 2.7)
    assert grey(pixels) is is_grey


def test_real_images_stand_above_what_they_became(path: Path) -> None:
    x = torch.zeros(2, 3, 8, 8)
    x[0, 0] = 1  # image 0 is red, image 1 is green
    x[1, 1] = 1
    blue = torch.zeros(1, 3, 8, 8)
    blue[0, 2] = 1
    pixels = drawn(path, x, blue, [1])  # and green became blue
    assert count(pixels, (255, 0, 0)) == 0
    assert len(rows(pixels, (0, 255, 0))) > 5000
    assert len(rows(pixels, (0, 0, 255))) > 5000
    assert rows(pixels, (0, 255, 0)).max() < rows(pixels, (0, 0, 255)).min()


def test_values_outside_0_to_1_are_cut_and_not_stretched(path: Path) -> None:
    ones = drawn(path, torch.ones(1, 1, 8, 8), torch.ones(1, 1, 8, 8), [0])
    assert np.array_equal(drawn(path, torch.full((1, 1, 8, 8), 9.0), torch.full((1, 1, 8, 8), 3.0), [0]), ones)
    half = drawn(path, torch.full((1, 1, 8, 8), 0.5), torch.full((1, 1, 8, 8), -7.0), [0])
    assert count(half, (127, 127, 127)) + count(half, (128, 128, 128)) > 5000


def test_colours_outside_0_to_1_are_cut_without_a_word(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[logging.LogRecord] = []
    monkeypatch.setattr(logging.Logger, "callHandlers", lambda _, record: said.append(record))
    far = torch.full((1, 3, 8, 8), 2.0)
    far[:, 2] = -1
    assert count(drawn(path, far, far, [0]), (255, 255, 0)) > 20_000
    assert said == []  # matplotlib says so when it has to cut


def test_copies_of_one_image_share_a_column(path: Path) -> None:
    x = torch.rand(4, 1, 8, 8)
    origins = [index % 4 for index in range(40)]
    images = x[origins]
    assert inches(drawn(path, x, images, origins))[0] == 4
    # The columns stand in the order of the batch, whichever copy was drawn first.
    in_order = drawn(path, x, images[:4], [0, 1, 2, 3], ["a"])
    mixed = [2, 3, 2, 0, 1, 0]
    assert np.array_equal(drawn(path, x, x[mixed], mixed, ["a"]), in_order)


def test_images_that_started_as_noise_have_nothing_above_them(path: Path) -> None:
    pixels = drawn(path, torch.ones(4, 1, 8, 8), torch.ones(6, 1, 8, 8), None)
    assert inches(pixels) == (6, 2.7)
    middle = len(pixels) // 2
    assert count(pixels[:middle], (0, 0, 0)) > 20_000


@pytest.mark.parametrize("origins", [range(30), None], ids=["real", "noise"])
def test_no_more_than_ten_columns(path: Path, origins: Sequence[int] | None) -> None:
    assert inches(drawn(path, torch.rand(30, 1, 8, 8), torch.rand(30, 1, 8, 8), origins)) == (10, 2.7)


def test_a_single_image_still_makes_a_picture(path: Path) -> None:
    pixels = drawn(path, torch.rand(1, 1, 8, 8), torch.rand(1, 1, 8, 8), [0])
    assert inches(pixels) == (3, 2.7)


def test_the_label_is_the_class_the_teacher_finds_most_probable(path: Path) -> None:
    x, targets = torch.zeros(1, 1, 8, 8), torch.tensor([[0.4, 0.6]])
    says_b = drawn(path, x, x, [0], ["a", "b"], targets)
    assert np.array_equal(drawn(path, x, x, [0], ["zzz", "b"], targets), says_b)
    assert not np.array_equal(drawn(path, x, x, [0], ["a", "zzz"], targets), says_b)


NAMES = [
    "$",
    "$5",
    "a$b$",
    "$x_{$",
    r"\frac{",
    "%d",
    "{",
    "",
    "two\nlines",
    "[red]",
    "a" * 1000,
    "$" * 50,
    "a" * 10 + "$b",
    "\u202eturned",
    "\ud800",
    "猫",
    "e" + "\u0301" * 1000,
    r"\$",
]


@pytest.mark.parametrize("name", NAMES)
def test_any_class_name_can_be_drawn(path: Path, name: str) -> None:
    pixels = drawn(path, torch.rand(2, 1, 8, 8), torch.rand(2, 1, 8, 8), [0, 1], [name])
    assert inches(pixels) == (3, 2.7)


def test_a_dollar_sign_is_a_letter_and_no_formula(path: Path) -> None:
    x = torch.zeros(1, 1, 8, 8)
    assert not np.array_equal(drawn(path, x, x, [0], ["$x$"]), drawn(path, x, x, [0], ["x"]))


def test_a_name_is_drawn_as_it_is_printed(path: Path) -> None:
    x = torch.zeros(1, 1, 8, 8)
    assert np.array_equal(drawn(path, x, x, [0], ["a\u202e\nb"]), drawn(path, x, x, [0], ["a\ufffd\ufffdb"]))
    assert not np.array_equal(drawn(path, x, x, [0], [r"\$"]), drawn(path, x, x, [0], ["$"]))


def test_a_name_is_no_tex_either(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(1, 1, 8, 8)
    usual = drawn(path, x, x, [0], [r"\input{x}"])
    monkeypatch.setitem(mpl.rcParams, "text.usetex", True)
    assert np.array_equal(drawn(path, x, x, [0], [r"\input{x}"]), usual)


def test_a_long_name_is_cut(path: Path) -> None:
    x = torch.zeros(1, 1, 8, 8)
    cut = drawn(path, x, x, [0], ["abcdefghijk" + "l" * 90])
    assert np.array_equal(drawn(path, x, x, [0], ["abcdefghijk" + "m" * 5]), cut)
    assert not np.array_equal(drawn(path, x, x, [0], ["abcdefghijkl"]), cut)


@pytest.mark.parametrize("shape", [(64,), (2, 8, 8), (4, 8, 8), (8, 8), (1, 1)], ids=str)
@pytest.mark.parametrize("origins", [[0, 1], None], ids=["real", "noise"])
def test_inputs_that_are_no_images_are_drawn_as_strips(
    path: Path, shape: tuple[int, ...], origins: list[int] | None
) -> None:
    pixels = drawn(path, torch.rand(2, *shape), torch.rand(2, *shape), origins)
    assert inches(pixels) == (3, 2.7)


def test_a_picture_that_cannot_be_written_is_one_sentence_and_leaves_nothing(path: Path) -> None:
    path.mkdir()
    x = torch.rand(1, 1, 8, 8)
    with pytest.raises(
        AutorecallError, match=r"^cannot write .*recalled\.png: .*; check the folder and the free space$"
    ):
        draw_recalled(path, x, recalled(x, [0]), torch.ones(1, 1), ["a"])
    assert list(path.parent.iterdir()) == [path]


def test_an_older_picture_is_replaced(path: Path) -> None:
    path.write_text("an older picture")
    assert inches(drawn(path, torch.rand(3, 1, 8, 8), torch.rand(3, 1, 8, 8), range(3))) == (3, 2.7)


# Curves


def curves(folder: Path, columns: str = "step,task,loss,recalled_loss", curve: bool = True) -> NDArray[np.uint8]:
    """Those of a run of two tasks and ten steps."""
    losses = ",1.5,0.5" if "loss" in columns else ""
    rows = "".join(f"{step},{1 + step // 6}{losses}\n" for step in range(1, 11))
    (folder / "history.csv").write_text(f"{columns}\n{rows}")
    points = [Point(step, [10.0 * step, 5.0 * step]) for step in (0, 5, 10)] if curve else []
    found = replace(result("own/$x_1$", 0), steps=10, accuracy_matrix=[[90.0, 0.0], [50.0, 80.0]], curve=points)
    draw_curves(folder, found)
    with Image.open(folder / "curves.png") as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


def test_curves_show_every_task_and_every_loss(tmp_path: Path) -> None:
    pixels = curves(tmp_path)
    assert inches(pixels) == (7.0, 4.6)
    blue, red = (0, 0x72, 0xB2), (0xD5, 0x5E, 0)
    below = pixels[len(pixels) // 2 :]
    assert min(count(pixels, blue), count(pixels, red)) > min(count(below, blue), count(below, red)) > 100
    first = (tmp_path / "curves.png").read_bytes()
    curves(tmp_path)
    assert (tmp_path / "curves.png").read_bytes() == first


def test_a_method_without_a_loss_or_a_run_without_a_curve_has_curves_too(tmp_path: Path) -> None:
    assert inches(curves(tmp_path, "step,task")) == (7.0, 2.6)
    assert count(curves(tmp_path, "step,task", curve=False), (0, 0x72, 0xB2)) > 100


def test_a_history_that_is_not_of_the_run_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^cannot read .*history\.csv"):
        draw_curves(tmp_path, result("mnist/arm", 0))
    assert list(tmp_path.iterdir()) == []
