"""`autorecall predict`: from a run and image files to class names."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest
from PIL import Image

from autorecall.data import Dataset
from autorecall.runs.model import Model

from .worlds import Say, refused

RUN = "runs/mnist/slda/seed-0"


@pytest.fixture
def digits(place: Path, few_digits: Dataset, say: Say) -> Path:
    """A finished run, and a folder of ten test images named after their digits."""
    assert say("run", "mnist/slda", "--curve-points", "0").code == 0
    folder = place / "images" / "deeper"
    folder.mkdir(parents=True)
    for digit in range(10):
        pixels = few_digits.test.inputs[few_digits.test.labels == digit][0, 0]
        Image.fromarray(pixels).save(folder / f"{digit}.png")
    (folder / "notes.txt").write_text("not an image")
    return folder


def test_images_and_folders_are_classified(say: Say, digits: Path) -> None:
    said = say("predict", RUN, "images", str(digits / "3.png"), "--top", "2")
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert len(lines) == 11
    assert lines[0].startswith("images/deeper/0.png: 0 ")
    right = sum(line.split("/")[-1][0] == line.split(": ")[1][0] for line in lines)
    assert right >= 8
    assert all(line.count(" %") == 2 for line in lines)


def test_a_table_has_all_of_them(say: Say, digits: Path, place: Path) -> None:
    assert say("predict", RUN, "images", "--top", "3", "--csv", "found.csv").code == 0
    with (place / "found.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10
    assert list(rows[0]) == [
        "file",
        *(f"{what}_{place}" for place in (1, 2, 3) for what in ("class", "probability")),
    ]
    for row in rows:
        shares = [float(row[f"probability_{place}"]) for place in (1, 2, 3)]
        assert shares == sorted(shares, reverse=True)


@pytest.mark.usefixtures("digits")
def test_a_table_goes_where_a_link_leads(say: Say, place: Path) -> None:
    (place / "link.csv").symlink_to("real.csv")
    said = say("predict", RUN, "images", "--csv", "link.csv")
    assert (said.code, said.out) == (0, "wrote link.csv\n")
    assert (place / "link.csv").is_symlink()
    assert len((place / "real.csv").read_text().splitlines()) == 11


@pytest.mark.usefixtures("digits")
def test_a_table_that_could_not_be_written_is_refused_before_the_work(
    say: Say, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Model, "predict", lambda *_: pytest.fail("an image was classified"))
    reading, writing = os.pipe()
    (place / "loop.csv").symlink_to("loop.csv")
    for name, sentence in (
        (f"/dev/fd/{writing}", f"/dev/fd/{writing} is a pipe; give the name of a file to write"),
        ("/dev/null", "/dev/null is a device; give"),
        ("loop.csv", "cannot write loop.csv: Too many levels of symbolic links; give the name of a file"),
        ("nowhere/found.csv", "cannot write nowhere/found.csv: there is no folder nowhere; make it, or give another"),
    ):
        refused(say("predict", RUN, "images", "--csv", name), sentence)
    os.close(reading)
    os.close(writing)


def test_an_image_that_cannot_be_read_does_not_spoil_the_others(say: Say, digits: Path) -> None:
    (digits / "5.png").write_bytes(b"nothing")
    said = say("predict", RUN, "images")
    assert said.code == 2
    assert len(said.out.splitlines()) == 9
    assert "left out: images/deeper/5.png" in said.err
    assert "1 of 10 images could not be read" in said.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("nowhere images", "there is no nowhere"),
        ("images images", "give the folder of a finished run"),
        (f"{RUN} nothing.png", "there is no nothing.png"),
        (f"{RUN} nothing", "no image"),
        (f"{RUN} images --top 0", "top is 0"),
        (f"{RUN} images --top 11", "top is 11"),
    ],
)
@pytest.mark.usefixtures("digits")
def test_bad_use_gets_one_sentence(say: Say, words: str, sentence: str) -> None:
    Path("nothing").mkdir()
    said = say("predict", *words.split())
    assert (said.code, said.out) == (2, "")
    assert sentence in said.err
    assert said.err.count("\n") == 1
