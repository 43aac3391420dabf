"""CIFAR-10 in its official binary layout, six files of 10,000 records, a label byte and 3 x 32 x 32 pixels each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from autorecall.data.arrays import Dataset, Labels, Split, tail_of_each_class
from autorecall.data.download import Remote, download, members
from autorecall.data.locate import cache_folder, class_name, find, first_with, shown
from autorecall.errors import DataError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SHAPE = (3, 32, 32)
RECORD = 1 + 3 * 32 * 32
RECORDS = 10_000
VALIDATION_PER_CLASS = 250

FOLDER = "cifar-10-batches-bin"
TRAIN_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILE = "test_batch.bin"
NAMES_FILE = "batches.meta.txt"
NAMES_SIZE = 1024  # the official file has 61 bytes

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"


def load(folder: Path | None = None, progress: bool = False, may_download: bool = True) -> Dataset:
    """CIFAR-10; the last 250 training images of each class are the validation images."""
    place = find(folder, place_in)
    if place is None:
        place = cache_folder() / FOLDER
        download((Remote((URL,), SHA256),), place, _unpack, f"the .bin files from {URL}", progress, may_download)
    batches = [_read_batch(place / file) for file in TRAIN_FILES]
    images, labels = np.concatenate([batch[0] for batch in batches]), np.concatenate([batch[1] for batch in batches])
    del batches  # 150 MB, before the splits are copied
    _check_balance(place, labels)
    held = tail_of_each_class(labels, [VALIDATION_PER_CLASS] * len(CLASSES))
    train, val = Split(images[~held], labels[~held]), Split(images[held], labels[held])
    return Dataset("cifar10", train, val, Split(*_read_batch(place / TEST_FILE)), _class_names(place / NAMES_FILE))


def place_in(root: Path) -> Path | None:
    """Where its files are, in a folder that may hold other datasets."""
    return first_with((root / FOLDER, root), (*TRAIN_FILES, TEST_FILE))


def _unpack(archive: Path, into: Path) -> None:
    wanted = {f"{FOLDER}/{file}": RECORD * RECORDS for file in (*TRAIN_FILES, TEST_FILE)}
    members(archive, into, wanted, optional={f"{FOLDER}/{NAMES_FILE}": NAMES_SIZE})


def _read_batch(path: Path) -> tuple[npt.NDArray[np.uint8], Labels]:
    content = _read(path, RECORD * RECORDS)
    if len(content) != RECORD * RECORDS:
        found = "more" if len(content) > RECORD * RECORDS else f"only {len(content)}"
        raise DataError(_renew(path, f"holds {found} bytes, expected {RECORD * RECORDS}"))
    records = np.frombuffer(content, dtype=np.uint8).reshape(RECORDS, RECORD)
    labels = records[:, 0].astype(np.int64)
    if labels.max() >= len(CLASSES):
        index = int(np.argmax(labels >= len(CLASSES)))
        raise DataError(_renew(path, f"gives image {index} the label {labels[index]}, expected 0 to 9"))
    return records[:, 1:].reshape(RECORDS, *SHAPE).copy(), labels  # a view is not writable


def _check_balance(place: Path, labels: Labels) -> None:
    """Every batch has its own mix of classes, so a swapped batch shows up here."""
    counts = np.bincount(labels, minlength=len(CLASSES))
    expected = len(labels) // len(CLASSES)
    if (counts != expected).any():
        label = int(np.argmax(counts != expected))
        raise DataError(
            f"the five training files in {shown(place)} hold {counts[label]} images of class {label}, "
            f"expected {expected}; put those from {URL} there"
        )


def _class_names(path: Path) -> tuple[str, ...]:
    if not path.exists():
        return CLASSES
    try:
        lines = _read(path, NAMES_SIZE).decode().splitlines()
    except UnicodeDecodeError as error:
        raise DataError(_renew(path, "is not text")) from error
    names = tuple(class_name(line.strip()) for line in lines if line.strip())
    if len(names) != len(CLASSES):
        raise DataError(_renew(path, f"holds {len(names)} class names, expected {len(CLASSES)}"))
    return names


def _read(path: Path, size: int) -> bytes:
    if not path.is_file():
        raise DataError(_renew(path, "is missing"))
    try:
        with path.open("rb") as file:
            return file.read(size + 1)  # one more than expected, to notice a file that is too long
    except OSError as error:
        raise DataError(_renew(path, f"cannot be read ({error.strerror})")) from error


def _renew(path: Path, trouble: str) -> str:
    return f"{shown(path)} {trouble}; put the {path.name} from {URL} there"
