"""MNIST, twice: "mnist" is MNIST-5k, which comes with the package; "mnist-full" reads the original idx files.

MNIST-5k has 500 training images per class, 3,000 validation images and the whole test set; see scripts/make_mnist5k.py.
"""

from __future__ import annotations

import gzip
import zipfile
import zlib
from importlib.resources import files
from pathlib import Path

import numpy as np
import numpy.typing as npt

from autorecall.data.arrays import Dataset, Labels, Split, tail_of_each_class
from autorecall.data.download import Remote, download, keep
from autorecall.data.locate import cache_folder, find, first_with, shown
from autorecall.errors import DataError

EMBEDDED = files("autorecall.data") / "mnist5k.npz"
CLASSES = tuple("0123456789")
SIDE = 28
COUNTS = {"train": 60_000, "t10k": 10_000}
VALIDATION_SHARE = 0.05
TRAIN_PER_CLASS, VALIDATION_PER_CLASS = 500, 300  # of MNIST-5k
SEED_5K = 5000

# yann.lecun.com, the first home of these files, is often down; both mirrors carry the same bytes.
MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
SHA256 = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
FILES = (*SHA256, *(name.removesuffix(".gz") for name in SHA256))


def load_embedded() -> Dataset:
    """MNIST-5k from the package itself; needs no folder and no network."""
    try:
        with EMBEDDED.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            train, val, test = (
                Split(archive[f"{key}_images"][:, None], archive[f"{key}_labels"].astype(np.int64))
                for key in ("train", "val", "test")
            )
    except (OSError, EOFError, ValueError, LookupError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError("the embedded mnist5k.npz is missing or damaged; install autorecall again") from error
    return Dataset("mnist", train, val, test, CLASSES)


def load_full(folder: Path | None = None, progress: bool = False, may_download: bool = True) -> Dataset:
    """All of MNIST; the last 5 % of each class are the validation images."""
    place = find(folder, place_in)
    if place is None:
        place, names = cache_folder() / "mnist", tuple(SHA256)
        remotes = tuple(Remote(tuple(mirror + name for mirror in MIRRORS), SHA256[name]) for name in names)
        download(remotes, place, keep, f"the four files {', '.join(names)} from {MIRRORS[0]}", progress, may_download)
    images, labels = read_pair(place, "train")
    counts = [round(VALIDATION_SHARE * int(np.sum(labels == label))) for label in range(len(CLASSES))]
    held = tail_of_each_class(labels, counts)
    test = Split(*read_pair(place, "t10k"))
    return Dataset("mnist-full", Split(images[~held], labels[~held]), Split(images[held], labels[held]), test, CLASSES)


def place_in(root: Path) -> Path | None:
    """Where its files are, in a folder that may hold other datasets."""
    return first_with((root / "mnist", root), FILES)


def five_thousand(labels: Labels) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which training images belong to a set like MNIST-5k, and which are for validation.

    Validation: the last 300 of each class. Training: 500 of each class, drawn from the rest.
    """
    held = tail_of_each_class(labels, [VALIDATION_PER_CLASS] * len(CLASSES))
    # The raw output of PCG64 is fixed by its definition, while numpy may change how it draws a choice from it.
    lots = np.random.PCG64(SEED_5K).random_raw(len(labels))
    drawn = np.zeros(len(labels), dtype=np.bool_)
    for label in range(len(CLASSES)):
        candidates = np.flatnonzero((labels == label) & ~held)
        drawn[candidates[np.argsort(lots[candidates], kind="stable")[:TRAIN_PER_CLASS]]] = True
    return drawn, held


def read_pair(place: Path, part: str, home: str | None = None) -> tuple[npt.NDArray[np.uint8], Labels]:
    """The images (N, 1, 28, 28) and labels of "train" or "t10k", from plain or .gz idx files.

    `home` is where to get them, for the words of an error; if None, MNIST's.
    """
    count, home = COUNTS[part], home or MIRRORS[0]
    images = _read_idx(_either(place, f"{part}-images-idx3-ubyte", home), (count, SIDE, SIDE), home)
    path = _either(place, f"{part}-labels-idx1-ubyte", home)
    labels = _read_idx(path, (count,), home)
    if labels.max() >= len(CLASSES):
        index = int(np.argmax(labels >= len(CLASSES)))
        raise DataError(_renew(path, f"gives image {index} the label {labels[index]}, expected 0 to 9", home))
    return images[:, None], labels.astype(np.int64)


def _either(place: Path, name: str, home: str) -> Path:
    for path in (place / name, place / f"{name}.gz"):
        if path.is_file():
            return path
    raise DataError(f"{shown(place)} holds no {name} or {name}.gz; put {name}.gz from {home} there")


def _read_idx(path: Path, shape: tuple[int, ...], home: str) -> npt.NDArray[np.uint8]:
    """The bytes of an idx file of exactly this shape. The header is compared, never trusted."""
    # An idx header: two zero bytes, 8 for bytes, the number of axes, then the length of every axis.
    header = bytes((0, 0, 8, len(shape))) + np.array(shape, dtype=">u4").tobytes()
    expected = len(header) + int(np.prod(shape))
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(expected + 1)  # no more, whatever the file or its header claims
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(_renew(path, "cannot be read or is damaged", home)) from error
    if content[:4] != header[:4]:
        raise DataError(_renew(path, f"does not begin with the bytes {header[:4].hex(' ')} of its idx type", home))
    if content[: len(header)] != header:
        found = tuple(np.frombuffer(content[4 : len(header)].ljust(4 * len(shape), b"\0"), dtype=">u4").tolist())
        raise DataError(_renew(path, f"says it has the shape {found}, expected {shape}", home))
    if len(content) != expected:
        size = f"only {len(content)}" if len(content) < expected else "more"
        raise DataError(_renew(path, f"holds {size} bytes, expected {expected}", home))
    return np.frombuffer(content, dtype=np.uint8, offset=len(header)).reshape(shape).copy()


def _renew(path: Path, trouble: str, home: str) -> str:
    name = path.name.removesuffix(".gz") + ".gz"
    return f"{shown(path)} {trouble}; put {name} from {home} there"
