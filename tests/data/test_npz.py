"""A user's own .npz file: what is read, and one sentence for every kind of bad file."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autorecall.data import from_arrays, from_npz, load, npz
from autorecall.data.npz import every_example

from .conftest import Refused

RNG = np.random.default_rng(5)
X = RNG.integers(0, 256, (12, 3, 6, 6), dtype=np.uint8)
Y = np.arange(12) % 3
X_TEST, Y_TEST = X[::2][::-1], Y[::2][::-1]
PARTS: dict[str, Any] = {"train_x": X, "train_y": Y, "test_x": X_TEST, "test_y": Y_TEST}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data.npz"


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_arrays_are_those_that_were_written(write: Callable[..., None], file: Path) -> None:
    write(file, **PARTS, val_x=X[:3], val_y=Y[:3], classes=["cat", "dog", "ünï"], other=np.arange(5))
    data = load("npz", file)
    assert (data.name, data.classes, data.input_shape) == ("npz", ("cat", "dog", "ünï"), (3, 6, 6))
    same = from_arrays((X, Y), (X_TEST, Y_TEST), (X[:3], Y[:3]), ["cat", "dog", "ünï"])
    assert data.fingerprint() == same.fingerprint() == from_npz(str(file)).fingerprint()
    assert data.train.inputs.flags.writeable


@pytest.mark.parametrize(
    "spelling",
    [
        ("train_x", "train_y", "test_x", "test_y"),
        ("x_train", "y_train", "x_test", "y_test"),
        ("train_images", "train_labels", "test_images", "test_labels"),
    ],
)
def test_the_usual_names_are_understood(spelling: tuple[str, ...], file: Path) -> None:
    arrays: dict[str, Any] = dict(
        zip(spelling, (X, Y[:, None], X_TEST, Y_TEST), strict=True)
    )  # labels in a column, too
    np.savez(file, **arrays)
    assert from_npz(file).fingerprint() == from_arrays((X, Y), (X_TEST, Y_TEST)).fingerprint()


@pytest.mark.parametrize(
    "x",
    [X.transpose(0, 2, 3, 1), np.asfortranarray(X), X[:, 0], X.astype(">f8") / 255, X.reshape(12, -1)[:, :5] / 9.0],
    ids=["channels last", "Fortran order", "grey", "big-endian doubles", "vectors"],
)
def test_arrays_of_any_layout(x: np.ndarray, file: Path) -> None:
    np.savez(file, train_x=x, train_y=Y.astype(">i2"), test_x=x, test_y=Y)
    expected = X if x.shape[-1] == 3 else x
    assert from_npz(file).fingerprint() == from_arrays((expected, Y), (expected, Y)).fingerprint()


@pytest.mark.parametrize("names", [("x", "y"), ("images", "labels")])
def test_x_and_y_alone_are_split_by_shares(names: tuple[str, str], file: Path) -> None:
    arrays: dict[str, Any] = {names[0]: X, names[1]: Y}
    np.savez(file, **arrays)
    data = from_npz(file)
    assert data.train.labels.tolist() == Y[:9].tolist()
    np.testing.assert_array_equal(data.train.inputs, X[:9])
    np.testing.assert_array_equal(data.test.inputs, X[9:])  # the last of each class
    data = from_npz(file, test_share=0.5, val_share=0.25)
    np.testing.assert_array_equal(data.train.inputs, X[:3])
    np.testing.assert_array_equal(data.val.inputs, X[3:6])
    np.testing.assert_array_equal(data.test.inputs, X[6:])


def test_validation_is_taken_from_the_training_examples_if_a_share_is_given(file: Path, refused: Refused) -> None:
    np.savez(file, **PARTS)
    assert len(from_npz(file).val) == 0
    data = from_npz(file, val_share=0.25)
    np.testing.assert_array_equal(data.val.inputs, X[9:])
    np.testing.assert_array_equal(data.test.inputs, X_TEST)
    with refused("test_share is 0.5", "has test images of its own"):
        from_npz(file, test_share=0.5)
    with refused("test_share is 2"):
        from_npz(file, test_share=2)


def test_training_examples_alone_need_a_share(file: Path, refused: Refused) -> None:
    np.savez(file, train_x=X, train_y=Y)
    with refused(str(file), "none to test", "set test_share"):
        from_npz(file)
    assert len(from_npz(file, test_share=0.25).test) == 3


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"train_y": None}, "has train_x but no train_y; add it"),
        ({"test_x": None}, "has test_y but no test_x; add it"),
        ({"train_x": None, "train_y": None}, "has test_x, test_y; expected train_x, train_y, test_x and test_y"),
        ({"train_x": None, "train_y": None, "x": X, "y": Y}, "has examples to test but none to train"),
        ({"train_y": Y[:5]}, "train has 12 inputs but 5 labels"),
        ({"train_y": Y * 1.0}, "train labels are float64; give integers"),
        ({"train_x": X.astype(int)}, "train inputs are int64; give uint8 from 0 to 255, or floats"),
        ({"test_x": X[:6, :, :5]}, "one test input has shape (3, 5, 6)"),
        ({"train_x": np.full(X.shape, np.inf)}, "holds a number that is not finite"),
        ({"test_y": Y_TEST + 9, "classes": ["a", "b", "c"]}, "test label 0 is"),
        ({"train_y": Y - 1}, "train label 0 is -1"),
        ({"classes": np.array([1, 2, 3])}, "classes is int64 of shape (3,); give a list of names"),
        ({"classes": np.array("cat")}, "classes is <U3 of shape (); give a list of names"),
        ({"classes": ["cat", "dog"]}, "train label 2 is 2; expected 0 to 1"),
        ({"train_x": X.astype(complex)}, "train_x is complex128; give numbers"),
        ({"train_x": X > 3}, "train_x is bool; give numbers"),
        ({"train_x": np.zeros(12, dtype=[("a", "i4")])}, "give numbers"),
    ],
)
def test_one_sentence_for_arrays_that_do_not_fit(
    changes: dict[str, Any], sentence: str, file: Path, refused: Refused
) -> None:
    arrays = {name: value for name, value in (PARTS | changes).items() if value is not None}
    np.savez(file, **arrays)
    with refused(str(file), sentence):
        from_npz(file)


def test_a_class_of_one_example_cannot_be_shared_out(file: Path, refused: Refused) -> None:
    np.savez(file, x=X, y=[0] * 11 + [1], classes=["cat", "dog"])
    with refused("has a single example of class dog; give at least two"):
        from_npz(file)
    np.savez(file, x=X, y=[0] * 9 + [1] * 3, classes=["cat", "dog"])
    data = from_npz(file)
    assert np.bincount(data.train.labels).tolist() == [7, 2]


class Fires:
    """What a pickle would do if it were read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("fired",)


def test_nothing_is_unpickled(file: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    np.savez(file, **PARTS | {"train_y": np.array([Fires()] * 12, dtype=object)})
    with refused(str(file), "train_y has Python objects, which are not read"):
        from_npz(file)
    assert not (file.parent / "fired").exists()


def member(header: bytes, content: bytes = b"") -> bytes:
    """An .npy file with this dictionary as header."""
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content


LIES = {
    "more than it has": b"{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000, 28, 28)}\n",
    "less than it has": b"{'descr': '|u1', 'fortran_order': False, 'shape': (1,)}\n",
    "less than nothing": b"{'descr': '|u1', 'fortran_order': False, 'shape': (-5,)}\n",
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_takes_no_memory(lie: str, file: Path, refused: Refused) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("train_x.npy", member(LIES[lie], b"\0" * 100))
    with refused(str(file), "train_x has not the size that it says"):
        from_npz(file)


def test_a_bomb_is_refused_unread(file: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros are compressed a thousandfold: the size that the archive states is looked at first."""
    monkeypatch.setattr(npz, "MOST_BYTES", 10**6)
    np.savez_compressed(file, train_x=np.zeros((2000, 1, 28, 28), dtype=np.uint8), train_y=np.zeros(2000, dtype=int))
    assert file.stat().st_size < 10**5
    with refused(str(file), "has arrays of 0.0 GB, more than can be held in memory"):
        from_npz(file)
    monkeypatch.setattr(npz, "_memory", lambda: 10**6)
    monkeypatch.setattr(npz, "MOST_BYTES", 10**12)
    with refused("more than can be held in memory"):
        from_npz(file)


def damaged() -> dict[str, bytes]:
    whole = io.BytesIO()
    np.savez(whole, **PARTS)
    content = whole.getvalue()
    flipped = bytearray(content)
    flipped[content.index(X[:1].tobytes()[:50]) + 20] ^= 255
    named = io.BytesIO()
    with zipfile.ZipFile(named, "w") as archive:
        archive.writestr("train_x.npy", b"no array")
        archive.writestr("train_y.npy", member(b"{'descr': " + b"(" * 2000 + b"}"))
    odd = io.BytesIO()
    with zipfile.ZipFile(odd, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("train_x.npy", member(b"__import__('os')"))
    return {
        "empty": b"",
        "text": b"train_x",
        "a single array": member(b"{'descr': '|u1', 'fortran_order': False, 'shape': (1,)}\n", b"1"),
        "cut off": content[: len(content) // 2],
        "a flipped bit": bytes(flipped),
        "no arrays in it": named.getvalue(),
        "code in a header": odd.getvalue(),
        "a pickle": b"\x80\x04K\x01.",
    }


@pytest.mark.parametrize("kind", damaged())
def test_a_damaged_file_is_refused(kind: str, file: Path, refused: Refused) -> None:
    file.write_bytes(damaged()[kind])
    with refused(f"{file} is damaged or not a .npz file; write it again with numpy.savez"):
        from_npz(file)


def test_a_file_that_is_none(tmp_path: Path, refused: Refused) -> None:
    with refused(f"the file {tmp_path / 'gone.npz'} does not exist; give the path of a .npz file"):
        from_npz(tmp_path / "gone.npz")
    with refused("is not a regular file"):
        from_npz(tmp_path)
    os.mkfifo(tmp_path / "pipe.npz")
    with refused("is not a regular file"):
        from_npz(tmp_path / "pipe.npz")
    with refused("the dataset npz needs a file"):
        load("npz")


def test_an_empty_archive_says_what_is_expected(file: Path, refused: Refused) -> None:
    np.savez(file, pixels=X)
    with refused("has none of them; expected train_x, train_y, test_x and test_y, or x and y alone"):
        from_npz(file)


def test_control_characters_in_class_names_are_replaced(file: Path) -> None:
    np.savez(file, **PARTS, classes=["cat\x1b[2J", "dog", "owl"])
    assert from_npz(file).classes == ("cat\ufffd[2J", "dog", "owl")


def test_reading_needs_no_torch(file: Path) -> None:
    np.savez(file, **PARTS)
    code = (
        f"import sys; from autorecall.data import from_npz; from_npz({str(file)!r}); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("parts", "expected"),
    [(["test"], [1]), (["train", "test", "val"], [0, 1, 2]), (["test", "val"], [1, 2]), (["all", "test"], [1, 3])],
    ids=str,
)
def test_every_example_is_taken_from_whichever_parts_there_are(
    file: Path, parts: list[str], expected: list[int]
) -> None:
    """One of a class will do."""
    arrays: dict[str, np.ndarray] = {}
    for number, part in enumerate(("train", "test", "val", "all")):
        prefix = "" if part == "all" else f"{part}_"
        if part in parts:
            arrays |= {f"{prefix}x": np.full((1, 2, 2), number, np.uint8), f"{prefix}y": np.array([number])}
    np.savez(file, **arrays, classes=["cat", "dog", "owl", "elk"])  # type: ignore[arg-type]
    found = every_example(file)
    assert found.train.labels.tolist() == expected
    assert found.train.inputs[:, 0, 0, 0].tolist() == expected
    assert found.classes == ("cat", "dog", "owl", "elk")


def test_a_file_without_examples_has_none_to_test(file: Path, refused: Refused) -> None:
    np.savez(file, classes=["cat", "dog"])
    with refused("has classes; expected train_x, train_y, test_x and test_y, or x and y alone"):
        every_example(file)
    np.savez(file, test_x=np.zeros((0, 2, 2), np.uint8), test_y=np.zeros(0, np.int64))
    with refused("split is empty; give it at least one example"):
        every_example(file)
