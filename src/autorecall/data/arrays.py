"""What every dataset becomes: three splits of plain arrays; and the checks on a user's own arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt

from autorecall.checks import brief
from autorecall.data.locate import twice
from autorecall.errors import DataError

Inputs: TypeAlias = npt.NDArray[np.uint8] | npt.NDArray[np.float32]
Labels: TypeAlias = npt.NDArray[np.int64]
Pair: TypeAlias = tuple[npt.ArrayLike, npt.ArrayLike]

# Without names, the largest label gives the number of classes: a stray 10**12 must not become 10**12 names.
MOST_UNNAMED_CLASSES = 100_000
CHANNELS = (1, 3, 4)  # of an image: grey, colour, colour with transparency


@dataclass(frozen=True, eq=False)  # == on arrays gives an array, so splits are compared by identity or fingerprint
class Split:
    """Inputs and their labels, in a fixed order."""

    inputs: Inputs
    """N first: images as bytes (N, C, H, W), or float32 of any shape (N, ...)."""
    labels: Labels
    """The class of each input, (N,)."""

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Three splits that share no example, and the names of their classes."""

    name: str
    train: Split
    val: Split
    test: Split
    classes: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    """Files that could not be read, where leaving them out was asked for."""
    shares: tuple[float | None, float | None] = (None, None)
    """The shares of training examples that were asked for, to test and to validate."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return self.train.inputs.shape[1:]

    def fingerprint(self) -> str:
        """SHA-256 over every array and class name, to notice later if the data changed."""
        digest = hashlib.sha256()
        for split in (self.train, self.val, self.test):
            for array in (split.inputs, split.labels):
                # Type and shape, then little-endian bytes: the same data has one fingerprint on every machine.
                portable = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
                digest.update(f"{portable.dtype.str}{portable.shape};".encode())
                digest.update(portable.reshape(-1).view(np.uint8).data)
        for name in self.classes:
            encoded = name.encode("utf-8", "surrogatepass")  # a folder name need not be valid text
            digest.update(f"{len(encoded)};".encode() + encoded)
        return digest.hexdigest()


def from_arrays(
    train: Pair,
    test: Pair,
    val: Pair | None = None,
    classes: Sequence[str] | None = None,
    name: str = "arrays",
) -> Dataset:
    """A dataset of (inputs, labels) pairs: numpy arrays, lists, or anything else that `np.asarray` accepts.

    Bytes stay bytes (0..255, scaled when a batch is made) and floats become float32, unscaled. Images are
    channels first, (N, C, H, W); bytes of shape (N, H, W) are taken as one channel, and bytes of shape (N, H, W, C) are
    turned. Arrays are not copied unless their type or layout requires it.

    >>> import numpy as np
    >>> images = np.zeros((4, 28, 28), dtype=np.uint8)
    >>> data = from_arrays(train=(images, [0, 1, 0, 1]), test=(images[:2], [0, 1]), classes=["cat", "dog"])
    >>> data.input_shape, len(data.train), len(data.val), len(data.test)
    ((1, 28, 28), 4, 0, 2)
    """
    train_split, test_split = _split("train", train), _split("test", test)
    val_split = Split(train_split.inputs[:0], train_split.labels[:0]) if val is None else _split("val", val)
    if len(val_split) == 0:  # an empty list has neither shape nor type of its own
        val_split = Split(train_split.inputs[:0], train_split.labels[:0])
    splits = {"train": train_split, "val": val_split, "test": test_split}
    for key in ("train", "test"):
        if len(splits[key]) == 0:
            raise DataError(f"the {key} split is empty; give it at least one example")
    for key in ("val", "test"):
        _check_alike(key, splits[key].inputs, train_split.inputs)
    names = _class_names(classes, splits)
    for key, split in splits.items():
        check_labels(key, split.labels, len(names))
    return Dataset(name, train_split, val_split, test_split, names)


def turned(images: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Images with their channels first: (…, H, W, C) is turned, told by an axis as short as channels are.

    >>> turned(np.zeros((5, 28, 28, 3))).shape, turned(np.zeros((28, 28, 1))).shape, turned(np.zeros((3, 9, 9))).shape
    ((5, 3, 28, 28), (1, 28, 28), (3, 9, 9))
    """
    last = images.ndim >= 3 and images.shape[-1] in CHANNELS and images.shape[-3] not in CHANNELS
    return np.moveaxis(images, -1, -3) if last else images


def joined(*splits: Split) -> Split:
    """All examples together. Bytes among floats are scaled to [0, 1], as a batch of bytes is."""
    mixed = len({split.inputs.dtype for split in splits}) > 1
    inputs = np.concatenate([_scaled(split.inputs) if mixed else split.inputs for split in splits])
    return Split(cast("Inputs", inputs), np.concatenate([split.labels for split in splits]))


def _scaled(inputs: Inputs) -> npt.NDArray[np.float32]:
    return (
        np.divide(inputs, 255, dtype=np.float32) if inputs.dtype == np.uint8 else inputs.astype(np.float32, copy=False)
    )


def tail_of_each_class(labels: Labels, counts: Sequence[int]) -> npt.NDArray[np.bool_]:
    """True for the last counts[c] examples of every class c, in file order: the validation part of a training set.

    >>> import numpy as np
    >>> tail_of_each_class(np.array([0, 1, 0, 1, 0]), counts=[2, 1]).tolist()
    [False, False, True, True, True]
    """
    mask = np.zeros(len(labels), dtype=np.bool_)
    for label, count in enumerate(counts):
        where = np.flatnonzero(labels == label)
        mask[where[len(where) - count :]] = True
    return mask


def _split(key: str, pair: Pair) -> Split:
    try:
        inputs, labels = pair
    except (TypeError, ValueError) as error:
        raise DataError(f"{key} is not a pair; give (inputs, labels)") from error
    split = Split(_inputs(key, inputs), _labels(key, labels))
    if len(split.inputs) != len(split.labels):
        raise DataError(f"{key} has {len(split.inputs)} inputs but {len(split.labels)} labels; give one per input")
    return split


def _array(what: str, values: npt.ArrayLike) -> npt.NDArray[np.generic]:
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:  # ragged lists, tensors with grad or on a GPU
        raise DataError(f"{what} cannot be converted to an array ({type(error).__name__}); give a CPU array") from error


def _inputs(key: str, values: npt.ArrayLike) -> Inputs:
    array = _array(f"{key} inputs", values)
    if len(array.shape) >= 1 and len(array) == 0:
        return np.zeros((0, 1), dtype=np.float32)
    if array.dtype == np.uint8:
        if array.ndim == 3:
            array = array[:, None]
        elif array.ndim == 4:
            array = turned(array)
    elif array.dtype.kind != "f" or array.dtype.itemsize > 8:
        raise DataError(f"{key} inputs are {array.dtype}; give uint8 from 0 to 255, or floats")
    if array.ndim < 2 or 0 in array.shape:
        raise DataError(f"{key} inputs have shape {array.shape}; give (N, ...) with at least one number per input")
    # Writable and contiguous: torch.from_numpy warns about read-only arrays and refuses some strides.
    if array.dtype == np.uint8:
        return np.require(array, np.uint8, ["C", "W"])
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite, and is reported as such below
        floats = np.require(array, np.float32, ["C", "W"])
    finite = np.isfinite(floats).reshape(len(floats), -1).all(axis=1)
    if not finite.all():
        index = int(np.argmin(finite))
        raise DataError(f"{key} input {index} holds a number that is not finite in float32; remove or repair it")
    return floats


def _labels(key: str, values: npt.ArrayLike) -> Labels:
    array = _array(f"{key} labels", values)
    if array.ndim != 1:
        raise DataError(f"{key} labels have shape {array.shape}; give one whole number per input, shape (N,)")
    if len(array) == 0:
        return np.zeros(0, dtype=np.int64)
    if not np.issubdtype(array.dtype, np.integer):
        raise DataError(f"{key} labels are {array.dtype}; give integers from 0 to the number of classes minus one")
    if array.dtype == np.uint64 and int(array.max()) > np.iinfo(np.int64).max:
        raise DataError(f"{key} labels go up to {array.max()}; give integers from 0 to the number of classes minus one")
    return np.require(array, np.int64, ["C", "W"])


def _check_alike(key: str, inputs: Inputs, train: Inputs) -> None:
    if inputs.shape[1:] != train.shape[1:]:
        raise DataError(
            f"one {key} input has shape {inputs.shape[1:]} but one train input {train.shape[1:]}; give the same shape"
        )
    if inputs.dtype != train.dtype:
        raise DataError(f"{key} inputs are {inputs.dtype} but train inputs are {train.dtype}; give the same type")


def _class_names(classes: Sequence[str] | None, splits: dict[str, Split]) -> tuple[str, ...]:
    if classes is None:
        largest = max(0, *(int(split.labels.max()) for split in splits.values() if len(split)))
        if largest >= MOST_UNNAMED_CLASSES:
            raise DataError(f"labels go up to {largest} and no class names are given; number the classes from 0")
        return tuple(str(label) for label in range(largest + 1))
    if isinstance(classes, str) or not all(isinstance(name, str) for name in classes):
        raise DataError(f"classes is {brief(classes)}; give a list of names, one per class")
    shared = twice(classes)
    if shared is not None:
        raise DataError(
            f"two classes are called {brief(shared)}, as far as it can be read; give each a name of its own"
        )
    return tuple(classes)


def check_labels(key: str, labels: Labels, count: int) -> None:
    """Refuse labels that number none of so many classes."""
    wrong = np.flatnonzero((labels < 0) | (labels >= count))
    if len(wrong):
        index = int(wrong[0])
        raise DataError(f"{key} label {index} is {labels[index]}; expected 0 to {count - 1}, one number per class")
