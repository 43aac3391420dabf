from __future__ import annotations

import gzip
import io
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from autorecall.data import load, mnist

from .conftest import Made, Refused, idx

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_mnist5k.py"
FINGERPRINT = "607c64c84421782f010588e1ff24504d763245ce4cb5289c89a8c8317823ef24"


def test_embedded_has_the_papers_sizes() -> None:
    data = load("mnist")
    assert (data.name, data.input_shape, data.classes) == ("mnist", (1, 28, 28), tuple("0123456789"))
    np.testing.assert_array_equal(np.bincount(data.train.labels), [500] * 10)
    np.testing.assert_array_equal(np.bincount(data.val.labels), [300] * 10)
    # The test set of MNIST is known to hold these many of each digit.
    np.testing.assert_array_equal(
        np.bincount(data.test.labels), [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    )
    for split in (data.train, data.val, data.test):
        assert split.inputs.dtype == np.uint8
        assert split.labels.dtype == np.int64
        assert split.inputs.flags.c_contiguous
        assert split.inputs.flags.writeable
    assert data.fingerprint() == FINGERPRINT


def test_embedded_is_small_enough_to_carry() -> None:
    assert len(mnist.EMBEDDED.read_bytes()) < 5_000_000


def test_embedded_splits_share_no_image() -> None:
    data = load("mnist")
    seen = [image.tobytes() for split in (data.train, data.val, data.test) for image in split.inputs]
    assert len(set(seen)) == len(seen)


def test_embedded_is_what_the_script_makes(real: Path, tmp_path: Path) -> None:
    outs = [tmp_path / "first.npz", tmp_path / "second.npz"]
    for out in outs:
        subprocess.run([sys.executable, SCRIPT, real / "mnist", out], check=True, capture_output=True)
    first, second = (out.read_bytes() for out in outs)
    assert first == second
    with np.load(io.BytesIO(first)) as made, mnist.EMBEDDED.open("rb") as file, np.load(file) as embedded:
        assert set(made) == set(embedded)
        for key in made:
            np.testing.assert_array_equal(made[key], embedded[key])
    if zlib.ZLIB_RUNTIME_VERSION.startswith("1.2.13"):  # another zlib may pack the same arrays in other bytes
        assert first == mnist.EMBEDDED.read_bytes()


def test_embedded_follows_its_description(real: Path) -> None:
    """Validation is the last 300 of each class, training images come from the others, test is the test file."""
    data, (images, labels), test = load("mnist"), mnist.read_pair(real / "mnist", "train"), load("mnist").test
    for label in range(10):
        of_class = images[labels == label]
        np.testing.assert_array_equal(data.val.inputs[data.val.labels == label], of_class[-300:])
        rest = {image.tobytes() for image in of_class[:-300]}
        assert all(image.tobytes() in rest for image in data.train.inputs[data.train.labels == label])
    test_images, test_labels = mnist.read_pair(real / "mnist", "t10k")
    np.testing.assert_array_equal(test.inputs, test_images)
    np.testing.assert_array_equal(test.labels, test_labels)


def test_script_says_in_a_sentence_what_is_missing(tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    run = subprocess.run([sys.executable, SCRIPT, tmp_path, out], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "holds no train-images-idx3-ubyte" in run.stderr
    assert "Traceback" not in run.stderr
    assert not out.exists()


@pytest.mark.parametrize("damage", ["missing", "empty", "half", "flipped", "other", "npy"])
def test_damaged_embedded_file(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    whole = mnist.EMBEDDED.read_bytes()
    other, npy = io.BytesIO(), io.BytesIO()
    np.savez(other, something=np.zeros(3))
    np.save(npy, np.zeros(3))
    flipped = bytearray(whole)
    flipped[1_000_000] ^= 0xFF
    contents = {"empty": b"", "half": whole[: len(whole) // 2], "flipped": bytes(flipped)}
    contents |= {"other": other.getvalue(), "npy": npy.getvalue()}
    path = tmp_path / "mnist5k.npz"
    if damage != "missing":
        path.write_bytes(contents[damage])
    monkeypatch.setattr(mnist, "EMBEDDED", path)
    with refused("mnist5k.npz is missing or damaged; install autorecall again"):
        load("mnist")


@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_full_reads_plain_and_packed_files(inner: bool, packed: bool, small_mnist: Made) -> None:
    if packed:
        for path in list(small_mnist.folder.iterdir()):
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    data = load("mnist-full", small_mnist.folder.parent if inner else small_mnist.folder)
    assert (data.name, data.input_shape, data.classes) == ("mnist-full", (1, 28, 28), tuple("0123456789"))
    for label in range(10):  # 5 % of 60 images are 3
        of_class = small_mnist.images[small_mnist.labels == label]
        np.testing.assert_array_equal(data.train.inputs[data.train.labels == label][:, 0], of_class[:57])
        np.testing.assert_array_equal(data.val.inputs[data.val.labels == label][:, 0], of_class[57:])
    np.testing.assert_array_equal(data.test.inputs[:, 0], small_mnist.test_images)
    np.testing.assert_array_equal(data.test.labels, small_mnist.test_labels)
    for split in (data.train, data.val, data.test):
        assert split.inputs.flags.c_contiguous
        assert split.inputs.flags.writeable
        assert split.labels.dtype == np.int64


def test_full_keeps_the_order_of_the_file(small_mnist: Made) -> None:
    data = load("mnist-full", small_mnist.folder)
    where = {image.tobytes(): index for index, image in enumerate(small_mnist.images)}
    for split in (data.train, data.val):
        order = [where[image.tobytes()] for image in split.inputs]
        assert order == sorted(order)
    assert len(data.train) + len(data.val) == 600


def test_full_of_the_real_files(real: Path) -> None:
    data = load("mnist-full", real)
    assert (len(data.train), len(data.val), len(data.test)) == (57_000, 3_000, 10_000)
    counts = np.bincount(data.train.labels) + np.bincount(data.val.labels)
    np.testing.assert_array_equal(np.bincount(data.val.labels), np.round(0.05 * counts))
    assert data.train.labels[:5].tolist() == [5, 0, 4, 1, 9]  # the first five digits, known to everyone


def lie(shape: tuple[int, ...]) -> bytes:
    return b"\x00\x00\x08" + bytes([len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)


DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "truncated images": ("train-images-idx3-ubyte", lambda b: b[:-1], "holds only 470415 bytes, expected 470416"),
    "truncated labels": ("t10k-labels-idx1-ubyte", lambda b: b[:-3], "holds only 35 bytes, expected 38"),
    "too long": ("train-labels-idx1-ubyte", lambda b: b + b"\0", "holds more bytes, expected 608"),
    "empty": ("t10k-images-idx3-ubyte", lambda b: b"", "does not begin with the bytes 00 00 08 03"),
    "only magic": ("t10k-images-idx3-ubyte", lambda b: b[:6], "says it has the shape (0, 0, 0), expected (30, 28, 28)"),
    "wrong magic": ("train-images-idx3-ubyte", lambda b: b"\x89PNG" + b[4:], "does not begin with"),
    "labels for images": ("train-images-idx3-ubyte", lambda b: idx(np.zeros(600)), "does not begin with"),
    "fewer images": ("train-images-idx3-ubyte", lambda b: idx(np.zeros((599, 28, 28))), "(599, 28, 28), expected (600"),
    "more labels": ("train-labels-idx1-ubyte", lambda b: idx(np.zeros(601)), "(601,), expected (600,)"),
    "wide images": ("t10k-images-idx3-ubyte", lambda b: idx(np.zeros((30, 32, 32))), "(30, 32, 32), expected (30, 28"),
    "lying header": ("train-images-idx3-ubyte", lambda b: lie((2**32 - 1,) * 3) + b[16:], "shape (4294967295,"),
    "label 10": ("t10k-labels-idx1-ubyte", lambda b: b[:-1] + b"\x0a", "gives image 29 the label 10, expected 0 to 9"),
}


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
def test_full_damaged_files(damage: str, packed: bool, small_mnist: Made, refused: Refused) -> None:
    name, change, part = DAMAGES[damage]
    path = small_mnist.folder / name
    content = change(path.read_bytes())
    path.unlink()
    path = path.with_name(name + ".gz") if packed else path
    path.write_bytes(gzip.compress(content) if packed else content)
    with refused(str(path), part, f"put {name}.gz from http"):
        load("mnist-full", small_mnist.folder)


@pytest.mark.parametrize("damage", ["half", "empty", "flipped", "not gzip", "bad block", "no end", "bad end"])
def test_full_damaged_gz(damage: str, small_mnist: Made, refused: Refused) -> None:
    path = small_mnist.folder / "train-images-idx3-ubyte"
    content = gzip.compress(path.read_bytes())
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 0xFF
    damaged = {
        "half": content[: len(content) // 2],
        "empty": b"",
        "flipped": bytes(flipped),
        "not gzip": path.read_bytes(),
        "bad block": content[:10] + b"\xff" * 100,
        "no end": content[:-8],
        "bad end": content[:-8] + b"\0" * 8,
    }
    path.unlink()
    path.with_name(path.name + ".gz").write_bytes(damaged[damage])
    with refused(f"{path}.gz", "put train-images-idx3-ubyte.gz from http"):
        load("mnist-full", small_mnist.folder)


def test_full_stops_unpacking_a_gz_bomb(small_mnist: Made, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    path = small_mnist.folder / "t10k-labels-idx1-ubyte"
    content = path.read_bytes()
    path.unlink()
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(content + b"\0" * 50_000_000, compresslevel=1))
    read = []

    class Counting(gzip.GzipFile):
        def read(self, size: int | None = -1) -> bytes:
            read.append(super().read(size))
            return read[-1]

    monkeypatch.setattr(gzip, "open", Counting)
    with refused("holds more bytes, expected 38"):
        load("mnist-full", small_mnist.folder)
    assert sum(map(len, read)) < 1_000_000


def test_full_names_a_missing_file(small_mnist: Made, refused: Refused) -> None:
    (small_mnist.folder / "t10k-labels-idx1-ubyte").unlink()
    with refused(str(small_mnist.folder), "holds no t10k-labels-idx1-ubyte or t10k-labels-idx1-ubyte.gz"):
        load("mnist-full", small_mnist.folder)
