"""What a run on images of one's own leaves: no pixel of them, in whatever form, unless that was asked for.

Pixels are looked for as bytes and as numbers of any type and scale, in pictures and in tensors: an image is there if
some stretch of as many values is the same image up to brightness and contrast.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from safetensors.numpy import load_file

from autorecall import cli
from autorecall.data import load

SIDE = 12
ALIKE = 0.98  # correlation; of unrelated photographs of 12 x 12 it is far lower
Values = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits that are a user's own: four classes."""
    place, digits = tmp_path_factory.mktemp("own"), load("mnist")
    for label in range(4):
        (place / str(label)).mkdir()
        for number, image in enumerate(digits.train.inputs[digits.train.labels == label][:25]):
            Image.fromarray(image[0]).resize((SIDE, SIDE)).save(place / str(label) / f"{number:02}.png")
    return place


@pytest.fixture(autouse=True)
def no_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """To search a large picture takes minutes; curves are drawn from two files that are searched."""
    monkeypatch.setattr("autorecall.commands.pictures.draw_curves", lambda folder, result: None)


def images(folder: Path) -> Values:
    """All of them, as rows of mean 0 and length 1."""
    found = [np.asarray(Image.open(path), dtype=np.float64).ravel() for path in sorted(folder.rglob("*.png"))]
    return normed(np.stack(found))


def normed(rows: Values) -> Values:
    centred: Values = rows - rows.mean(axis=1, keepdims=True)
    lengths: Values = np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-9)
    return centred / lengths


def numbers(place: Path, seen: set[str]) -> Iterator[tuple[str, Values]]:
    """Every sequence of numbers in the files below a folder: tensors, pictures until one is seen, raw bytes."""
    for path in sorted(place.rglob("*")):
        if not path.is_file():
            continue
        if path.suffix == ".safetensors":
            for name, values in load_file(path).items():
                yield f"{path.name}: {name}", np.atleast_1d(values).astype(np.float64).ravel()
        if path.suffix == ".png":
            picture = Image.open(path).convert("L")
            for side in range(200, SIDE, -1):  # an image may have been drawn larger
                small = picture.resize((picture.width * SIDE // side, picture.height * SIDE // side))
                pixels = np.asarray(small, dtype=np.float64)
                if min(pixels.shape) >= SIDE and not any(name.startswith(path.name) for name in seen):
                    windows = np.lib.stride_tricks.sliding_window_view(pixels, (SIDE, SIDE))
                    yield f"{path.name} at {side}", windows.reshape(-1, SIDE * SIDE).ravel()
        raw = path.read_bytes()
        for kind in (np.uint8, np.float16, np.float32):
            whole = raw[: len(raw) // np.dtype(kind).itemsize * np.dtype(kind).itemsize]
            with np.errstate(all="ignore"):
                yield f"{path.name} as {kind.__name__}", np.frombuffer(whole, kind).astype(np.float64)


def found(place: Path, wanted: Values) -> set[str]:
    """Where something like one of the images is."""
    size, seen = wanted.shape[1], set[str]()
    for name, values in numbers(place, seen):
        values = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
        limit = np.abs(values).max(initial=1.0)
        values = values / limit
        step = size if " at " in name else 1
        if len(values) < size:
            continue
        windows = np.lib.stride_tricks.sliding_window_view(values, size)[::step]
        for start in range(0, len(windows), 20_000):
            if (normed(windows[start : start + 20_000]) @ wanted.T).max() > ALIKE:
                seen.add(name)
                break
    return seen


def made(folder: Path, out: Path, method: str, *options: str) -> Path:
    """A run on the folder."""
    words = ["--dataset=folder", f"--data={folder}", f"--image-size={SIDE}", "--threads=1", "--curve-points=0"]
    if method not in ("slda",):
        words += ["--network.hidden", "16"]
    assert cli.dispatch(["run", f"mnist/{method}", *words, "--out", str(out), *options]) == 0
    return out


@pytest.mark.parametrize("method", ["arm", "adi", "lwf", "er-50"])
def test_a_run_on_ones_own_images_leaves_none_of_them(folder: Path, tmp_path: Path, method: str) -> None:
    assert found(made(folder, tmp_path / "out", method), images(folder)) == set()


@pytest.mark.parametrize(
    ("method", "option", "where"),
    [("arm", "--pictures", "recalled.png"), ("er-50", "--keep-learner", "learner.safetensors")],
)
def test_they_are_found_where_they_were_asked_for(
    folder: Path, tmp_path: Path, method: str, option: str, where: str
) -> None:
    """Or the search would find nothing anywhere."""
    places = found(made(folder, tmp_path / "out", method, option), images(folder))
    assert places
    assert all(place.startswith(where) for place in places)


def test_class_names_are_all_that_is_left_of_a_dataset(folder: Path, tmp_path: Path) -> None:
    """Names of files are not written anywhere either."""
    made(folder, tmp_path / "out", "naive")
    text = b"".join(path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert b"24.png" not in text
    assert str(folder).encode() not in text
