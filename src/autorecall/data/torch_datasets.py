"""Anything that torch loads from: a map-style Dataset, or a DataLoader. torch is imported only when this is used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

from autorecall.data.arrays import Dataset, Pair, from_arrays, turned
from autorecall.data.folders import GREY_MODES, eight_bits
from autorecall.errors import DataError

if TYPE_CHECKING:
    from torch.utils.data import DataLoader
    from torch.utils.data import Dataset as TorchDataset

    Source: TypeAlias = TorchDataset[object] | DataLoader[object]


def from_dataset(
    train: Source,
    test: Source,
    val: Source | None = None,
    classes: Sequence[str] | None = None,
    name: str = "arrays",
) -> Dataset:
    """A dataset of what map-style torch Datasets or DataLoaders give: pairs of an image and its class number.

    Every item is taken once, with its transforms, and kept in memory: bytes as bytes (Pillow images, arrays and tensors
    of uint8), floats, which should lie in [0, 1], as float32. A transform that draws at random therefore draws once; to
    augment anew in every pass, call `learner.observe` in a loop of your own. Images may be (height, width), (height,
    width, channels) or (channels, height, width), and must all have one size.

    Of a DataLoader, the dataset is taken in its own order, so that shuffling does not matter and a run can be resumed;
    if it has a sampler, only what that gives; if it has a `collate_fn` or a batch sampler, its batches as they come.
    Class names are `classes`, or else those of the training dataset (`train.classes`), or numbers.
    """
    if classes is None:
        classes = _class_names(train)
        for key, other in (("test", test), ("val", val)):
            _check_names(key, _class_names(other), classes)
    held_out = None if val is None else _read("val", val)
    return from_arrays(_read("train", train), _read("test", test), held_out, classes, name)


def _class_names(source: object) -> Sequence[str] | None:
    """The names that a dataset knows, also one inside a Subset or a DataLoader."""
    for _ in range(10):
        names = getattr(source, "classes", None)
        if isinstance(names, list | tuple) and names and all(isinstance(name, str) for name in names):
            return names
        source = getattr(source, "dataset", None)
    return None


def _check_names(key: str, names: Sequence[str] | None, known: Sequence[str] | None) -> None:
    """Datasets number their classes each for itself, so that other names would make other classes of the labels."""
    if names is None or known is None or tuple(names) == tuple(known):
        return
    number = next(
        (n for n, (a, b) in enumerate(zip(names, known, strict=False)) if a != b), min(len(names), len(known))
    )
    said = [f"{all_[number]!r:.80}" if number < len(all_) else "none" for all_ in (names, known)]
    raise DataError(
        f"class {number} of the {key} dataset is {said[0]} but of the training dataset {said[1]}; give both the same "
        "classes, or name those of the labels with classes="
    )


def _read(key: str, source: object) -> Pair:
    images: npt.NDArray[np.generic] | None = None
    labels: list[int] = []
    for index, item in enumerate(_items(key, source)):
        where = f"{key} item {index}"
        image, label = _pair(where, item)
        array = _image(where, image)
        if images is None:
            images = _space(key, max(1, _length(source)), array)
        if array.shape != images.shape[1:]:
            raise DataError(
                f"{where} has shape {array.shape} but the first {images.shape[1:]}; give all one size, e.g. with a "
                "transform that resizes"
            )
        if array.dtype != images.dtype:
            raise DataError(f"{where} is {array.dtype} but the first {images.dtype}; give all one type")
        if index == len(images):
            images = np.concatenate([images, _space(key, len(images), array)])
        images[index] = array
        labels.append(_label(where, label))
    if images is None:
        return [], []
    return images[: len(labels)], labels


def _space(key: str, count: int, like: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    try:
        return np.empty((count, *like.shape), dtype=like.dtype)
    except MemoryError as error:
        raise DataError(
            f"{count} {key} items of shape {like.shape} do not fit in memory; give fewer or smaller ones"
        ) from error


def _length(source: object) -> int:
    """How many items there will be, if that is known."""
    held = getattr(source, "dataset", source)
    try:
        return len(held)  # type: ignore[arg-type]
    except TypeError:
        return 1


def _items(key: str, source: object) -> Iterator[object]:
    """Single items, in an order that is the same every time if there is one."""
    from torch.utils.data import BatchSampler, DataLoader, IterableDataset, default_collate

    if not isinstance(source, DataLoader):
        if not (hasattr(source, "__getitem__") and isinstance(source, Sized)) or isinstance(source, IterableDataset):
            raise DataError(
                f"{key} is a {type(source).__name__}; give a map-style torch Dataset, with a length and items by "
                "number, or a DataLoader"
            )
        for index in range(len(source)):
            yield source[index]  # type: ignore[index]
        return
    plain = source.collate_fn is default_collate and type(source.batch_sampler) is BatchSampler
    if plain and not isinstance(source.dataset, IterableDataset):
        for index in sorted(source.sampler):
            yield source.dataset[index]
        return
    for batch in source:
        images, labels = _pair(f"a batch of {key}", batch)
        if not (isinstance(images, Sized) and isinstance(labels, Sized)) or len(images) != len(labels):
            raise DataError(f"a batch of {key} does not have as many labels as images; give one label per image")
        yield from zip(images, labels, strict=True)  # type: ignore[call-overload]


def _pair(where: str, item: object) -> tuple[object, object]:
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise DataError(f"{where} is a {type(item).__name__}, not a pair; give (image, class number)")
    return item[0], item[1]


def _array(value: object) -> npt.NDArray[np.generic] | None:
    """An array, or a tensor on any device, as an array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return value if isinstance(value, np.ndarray | np.generic) else None  # type: ignore[return-value]


def _image(where: str, image: object) -> npt.NDArray[np.generic]:
    if isinstance(image, Image.Image):
        mode = "L" if image.mode in GREY_MODES else "RGB"
        array: npt.NDArray[np.generic] | None = np.asarray(eight_bits(where, image).convert(mode))
    else:
        array = _array(image)
    if array is None:
        raise DataError(f"{where} has a {type(image).__name__} as image; give a Pillow image, an array or a tensor")
    if array.dtype != np.uint8 and array.dtype.kind != "f":
        raise DataError(f"{where} has an image of {array.dtype}; give uint8 from 0 to 255, or floats in [0, 1]")
    if array.ndim == 0 or array.size == 0:
        raise DataError(f"{where} has an image of shape {array.shape}; give at least one number")
    if array.ndim == 2:
        array = array[None]
    array = turned(array)
    return array if array.dtype == np.uint8 else array.astype(np.float32)


def _label(where: str, label: object) -> int:
    array = _array(label)
    number = label if array is None else array.item() if array.size == 1 else None
    if not isinstance(number, int) or isinstance(number, bool) or abs(number) >= 2**63:
        raise DataError(f"{where} has the label {str(label)[:80]}; give a whole number from 0, one per class")
    return number
