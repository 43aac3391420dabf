from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from autorecall.data import cifar10, load

from .conftest import Made, Refused

NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@pytest.mark.parametrize("inner", [True, False])
def test_reads_the_official_layout(inner: bool, small_cifar: Made) -> None:
    data = load("cifar10", small_cifar.folder.parent if inner else small_cifar.folder)
    assert (data.name, data.input_shape, data.classes) == ("cifar10", (3, 32, 32), NAMES)
    for label in range(10):
        of_class = small_cifar.images[small_cifar.labels == label]
        np.testing.assert_array_equal(data.train.inputs[data.train.labels == label], of_class[:7])
        np.testing.assert_array_equal(data.val.inputs[data.val.labels == label], of_class[7:])
    np.testing.assert_array_equal(data.test.inputs, small_cifar.test_images)
    np.testing.assert_array_equal(data.test.labels, small_cifar.test_labels)
    for split in (data.train, data.val, data.test):
        assert split.inputs.dtype == np.uint8
        assert split.labels.dtype == np.int64
        assert split.inputs.flags.c_contiguous
        assert split.inputs.flags.writeable


def test_keeps_the_order_of_the_files(small_cifar: Made) -> None:
    data = load("cifar10", small_cifar.folder)
    where = {image.tobytes(): index for index, image in enumerate(small_cifar.images)}
    for split in (data.train, data.val):
        order = [where[image.tobytes()] for image in split.inputs]
        assert order == sorted(order)


def test_names_of_the_meta_file(small_cifar: Made, refused: Refused) -> None:
    meta = small_cifar.folder / "batches.meta.txt"
    meta.write_text("\n".join(f"kind {n}" for n in range(9)) + "\nkind\x1b\n\n")
    assert load("cifar10", small_cifar.folder).classes == (*(f"kind {n}" for n in range(9)), "kind\ufffd")
    meta.write_text("one\ntwo\n")
    with refused(str(meta), "holds 2 class names, expected 10"):
        load("cifar10", small_cifar.folder)
    meta.write_bytes(b"\xff\xfe")
    with refused(str(meta), "is not text"):
        load("cifar10", small_cifar.folder)


def test_of_the_real_files(real: Path) -> None:
    data = load("cifar10", real)
    np.testing.assert_array_equal(np.bincount(data.train.labels), [4750] * 10)
    np.testing.assert_array_equal(np.bincount(data.val.labels), [250] * 10)
    np.testing.assert_array_equal(np.bincount(data.test.labels), [1000] * 10)
    assert data.classes == NAMES
    first = (real / "cifar-10-batches-bin" / "data_batch_1.bin").read_bytes()[:3073]
    assert bytes([data.train.labels[0]]) + data.train.inputs[0].tobytes() == first
    last = (real / "cifar-10-batches-bin" / "data_batch_5.bin").read_bytes()[-3073:]
    assert bytes([data.val.labels[-1]]) + data.val.inputs[-1].tobytes() == last


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "truncated": (lambda b: b[:-1], "holds only 61459 bytes, expected 61460"),
    "empty": (lambda b: b"", "holds only 0 bytes, expected 61460"),
    "too long": (lambda b: b + b"\0", "holds more bytes, expected 61460"),
    "label 10": (lambda b: b[: 3073 * 4] + b"\x0a" + b[3073 * 4 + 1 :], "gives image 4 the label 10, expected 0 to 9"),
}


@pytest.mark.parametrize("name", ["data_batch_3.bin", "test_batch.bin"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files(damage: str, name: str, small_cifar: Made, refused: Refused) -> None:
    change, part = DAMAGES[damage]
    path = small_cifar.folder / name
    path.write_bytes(change(path.read_bytes()))
    with refused(str(path), part, f"put the {name} from http"):
        load("cifar10", small_cifar.folder)


def test_names_a_missing_file(small_cifar: Made, refused: Refused) -> None:
    (small_cifar.folder / "data_batch_4.bin").unlink()
    with refused("data_batch_4.bin is missing"):
        load("cifar10", small_cifar.folder)


def test_notices_a_batch_in_place_of_another(small_cifar: Made, refused: Refused) -> None:
    first, second = (small_cifar.folder / f"data_batch_{n}.bin" for n in (1, 2))
    second.write_bytes(first.read_bytes())
    with refused(str(small_cifar.folder), "images of class", "expected 10"):
        load("cifar10", small_cifar.folder)


def test_official_sizes() -> None:
    assert cifar10.VALIDATION_PER_CLASS == 250
    assert cifar10.RECORD * cifar10.RECORDS == 30_730_000  # what each .bin file of the official archive has
