"""A user's own arrays in a .npz file, as `numpy.savez` writes it. Nothing in it is unpickled.

    np.savez("data.npz", train_x=x, train_y=y, test_x=x_test, test_y=y_test, classes=["cat", "dog"])

Inputs and labels are as in `from_arrays`; val_x, val_y and classes are optional. The usual other names are understood:
x_train and y_train, or train_images and train_labels. A file with x and y alone is split as a folder is.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from autorecall.data.arrays import Dataset, Pair, from_arrays, joined
from autorecall.data.locate import class_name, disk_errors, shown
from autorecall.data.shares import share_out, shares_of, wrong_shares
from autorecall.errors import DataError

MOST_BYTES = 32 * 10**9  # of all arrays together: half of ImageNet at 128 x 128
LONGEST_HEADER = 10_000  # bytes
AT_ONCE = 2**20
EXPECTED = "expected train_x, train_y, test_x and test_y, or x and y alone"
DAMAGES = (
    OSError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    RuntimeError,
    SyntaxError,
    zipfile.BadZipFile,
    zlib.error,
)


def from_npz(file: str | Path, test_share: float | None = None, val_share: float | None = None) -> Dataset:
    """A dataset of the arrays train_x, train_y, test_x and test_y, and if they are there val_x, val_y and classes.

    Without test_x, `test_share` of each class is taken from the end of the training examples, and `val_share` alike;
    from x and y alone, 20 % and 4 % if they are unset.
    """
    wrong = wrong_shares(test_share, val_share)
    if wrong is not None:
        raise DataError(wrong)
    path = Path(file)
    arrays = _read(path)
    pairs = _pairs(path, arrays)
    shares = shares_of(shown(path), pairs, test_share, val_share)
    every = pairs.pop("train", None) or pairs.pop("all")
    whole = _checked(path, arrays, every, pairs.get("test", every), pairs.get("val"))
    return replace(_shared_out(path, whole, shares, pairs), shares=(test_share, val_share))


def every_example(path: Path) -> Dataset:
    """All examples of such a file as training examples, to test something with them: one of a class will do."""
    arrays = _read(path)
    pairs = _pairs(path, arrays, trains=False)
    first, *others = [pair for pair in pairs.values() if np.size(pair[1])] or pairs.values()
    whole = _checked(path, arrays, first, *(others or [first]))
    return replace(whole, train=joined(*(whole.train, whole.test, whole.val)[: 1 + len(others)]))


def _checked(
    path: Path, arrays: dict[str, npt.NDArray[np.generic]], train: Pair, test: Pair, val: Pair | None = None
) -> Dataset:
    names = _names(path, arrays.get("classes"))
    try:
        return from_arrays(train=train, test=test, val=val, classes=names, name="npz")
    except DataError as error:
        raise DataError(f"{shown(path)}: {error}") from error


def _shared_out(path: Path, whole: Dataset, shares: tuple[float, float], given: Collection[str]) -> Dataset:
    """Shares of the training examples where there are no others."""
    inputs, labels = whole.train.inputs, whole.train.labels
    if shares[0] and (counts := np.bincount(labels)).min(initial=2, where=counts > 0) < 2:
        lone = whole.classes[int(np.flatnonzero(counts == 1)[0])]
        raise DataError(
            f"{shown(path)} has a single example of class {shown(lone)}; give at least two, to train and to test"
        )
    train, val, test = ((inputs[mask], labels[mask]) for mask in share_out(labels, *shares))
    return from_arrays(
        train=train if any(shares) else (inputs, labels),
        val=(whole.val.inputs, whole.val.labels) if "val" in given else val,
        test=(whole.test.inputs, whole.test.labels) if "test" in given else test,
        classes=whole.classes,
        name="npz",
    )


def _pairs(path: Path, arrays: dict[str, npt.NDArray[np.generic]], trains: bool = True) -> dict[str, Pair]:
    """Inputs and labels of train, test and val, or of `all`, under whichever names they have.

    Some must be there to train with, if it `trains`.
    """
    found: dict[str, Pair] = {}
    for part in ("train", "test", "val", "all"):
        for x, y in _spellings(part):
            if x in arrays and y in arrays:
                labels = arrays[y]
                found.setdefault(
                    part, (arrays[x], labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels)
                )
            elif x in arrays or y in arrays:
                there, missing = (x, y) if x in arrays else (y, x)
                raise DataError(f"{shown(path)} has {there} but no {missing}; add it")
    if not found or (trains and found.keys().isdisjoint(("train", "all"))):
        held = ", ".join(sorted(arrays)) or "none of them"
        raise DataError(f"{shown(path)} has {shown(held)[:200]}; {EXPECTED}")
    if "train" in found:
        found.pop("all", None)
    elif trains and len(found) > 1:
        raise DataError(f"{shown(path)} has examples to test but none to train; {EXPECTED}")
    return found


def _spellings(part: str) -> tuple[tuple[str, str], ...]:
    if part == "all":
        return ("x", "y"), ("images", "labels")
    return (f"{part}_x", f"{part}_y"), (f"x_{part}", f"y_{part}"), (f"{part}_images", f"{part}_labels")


WANTED = {name for part in ("train", "test", "val", "all") for pair in _spellings(part) for name in pair} | {"classes"}


def _names(path: Path, array: npt.NDArray[np.generic] | None) -> list[str] | None:
    if array is None:
        return None
    if array.ndim != 1 or array.dtype.kind != "U":
        raise DataError(f"{shown(path)}: classes is {array.dtype} of shape {array.shape}; give a list of names")
    return [class_name(str(name)) for name in array]


def _read(path: Path) -> dict[str, npt.NDArray[np.generic]]:
    """The arrays that are wanted. What a header promises is checked before memory is taken for it."""
    with disk_errors():
        # A regular file, or a link to one: reading a pipe would block forever.
        if not path.is_file():
            trouble = "is not a regular file" if path.exists() else "does not exist"
            raise DataError(f"the file {shown(path)} {trouble}; give the path of a .npz file")
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            wanted = {name: info for name, info in members.items() if name in WANTED}
            total = sum(info.file_size for info in wanted.values())
            if total > min(MOST_BYTES, _memory()):
                raise DataError(
                    f"{shown(path)} has arrays of {total / 1e9:,.1f} GB, more than can be held in memory; "
                    "give fewer or smaller ones"
                )
            return {name: _array(path, archive, info) for name, info in wanted.items()}
    except DataError:
        raise
    except MemoryError as error:
        raise DataError(f"{shown(path)} does not fit in memory; give fewer or smaller arrays") from error
    except DAMAGES as error:
        raise DataError(f"{shown(path)} is damaged or not a .npz file; write it again with numpy.savez") from error


def _array(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> npt.NDArray[np.generic]:
    with archive.open(info) as file:
        major, _ = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        shape, fortran, kind = read_header(file, max_header_size=LONGEST_HEADER)
        name = shown(info.filename.removesuffix(".npy"))
        if kind.hasobject:
            raise DataError(
                f"{shown(path)}: {name} has Python objects, which are not read; give numbers, names as text"
            )
        if kind.kind not in "uifU":
            raise DataError(f"{shown(path)}: {name} is {shown(str(kind))[:80]}; give numbers, names as text")
        size = kind.itemsize
        for length in shape:
            size *= length
        if size != info.file_size - file.tell():
            raise DataError(f"{shown(path)}: {name} has not the size that it says; write the file again")
        content = bytearray(size)
        for start in range(0, size, AT_ONCE):
            content[start : start + AT_ONCE] = file.read(min(AT_ONCE, size - start))
    array = np.ndarray(shape, kind, content, order="F" if fortran else "C")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _memory() -> int:
    """Bytes of memory that the machine has; where that is not known, no limit."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return MOST_BYTES
