"""One sub-folder of images per class: a user's own folder, and MiniImageNet, which is laid out the same way.

A user's own folder may also have these sub-folders below train/ and test/, and below val/.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from autorecall.checks import brief
from autorecall.data.arrays import Dataset, Split
from autorecall.data.locate import check_folder, class_name, disk_errors, find, places, shown, spelling, twice
from autorecall.data.shares import share_out, shares_of, wrong_shares
from autorecall.errors import BrokenImageError, DataError

Listed: TypeAlias = dict[str, list[Path]]
"""The image files of each class."""

MINIIMAGENET_SIZE, MINIIMAGENET_IMAGES = 84, 60_000
DEFAULT_SIZE = 32
LARGEST_SIZE = 1024
MOST_PIXELS = 50_000_000

GREY_MODES = ("1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N")
ORIENTATION = 0x0112  # of a photo, among what a camera notes
# Registered with Pillow, but not pictures to learn from: EPS starts another program, PDF and PALM can only be written,
# WMF needs Windows, and the others are containers of which Pillow knows only the first bytes.
NOT_PICTURES = ("EPS", "PDF", "PALM", "WMF", "BUFR", "GRIB", "HDF5", "MPEG")
PARTS = {"train": ("train",), "test": ("test",), "val": ("val", "valid", "validation")}


def from_folder(
    folder: str | Path,
    image_size: int = DEFAULT_SIZE,
    test_share: float | None = None,
    val_share: float | None = None,
    skip_broken: bool = False,
    channels: int | None = None,
    fewest_classes: int = 2,
) -> Dataset:
    """A user's own images: FOLDER/<class>/<image>, made square with sides of image_size.

    Sorted by name, the last 20 % of each class (`test_share`) test, the 4 % before them (`val_share`) validate, and the
    others train. A folder with FOLDER/train/<class>/<image> and FOLDER/test is taken as such, and so is FOLDER/val, or
    else `val_share` of the training images; test/ must have every class of train/, val/ need not.

    One channel if every image is grey, else RGB; or as many `channels` as are given, 1 or 3. Hidden files, files
    without an image suffix and deeper folders are skipped. An image that cannot be read is refused, or with
    `skip_broken` left out and named in `left_out`.
    """
    if not (isinstance(image_size, int) and 1 <= image_size <= LARGEST_SIZE):
        raise DataError(f"image_size is {brief(image_size)}; give a whole number of pixels from 1 to {LARGEST_SIZE}")
    wrong = wrong_shares(test_share, val_share)
    if wrong is not None:
        raise DataError(wrong)
    folder = Path(folder)
    with disk_errors():
        check_folder(folder)
        roots = _parts(folder)
        shares = shares_of(shown(folder), roots, test_share, val_share)
        parts = (roots or {"train": folder}).items()
        listed = {part: _list_classes(root, 0 if part == "val" else fewest_classes) for part, root in parts}
        for part in listed.keys() - {"train"}:
            listed[part] = _spelled_as(listed["train"], listed[part])
        broken: list[Path] = []
        if skip_broken:
            broken = [path for path in _every(listed) if not _can_be_read(path)]
            listed = {part: _without(classes, set(broken)) for part, classes in listed.items()}
        _check_counts(roots.get("train", folder), listed["train"], 2 if shares[0] else 1, bool(broken))
        _check_classes(roots, listed)
        with _left_out_advised():
            grey = channels == 1 or (channels is None and all(map(_is_grey, _every(listed))))
            data = _read("folder", listed, shares, image_size, "L" if grey else "RGB")
        left_out = tuple(class_name(str(path.relative_to(folder))) for path in broken)
        return replace(data, left_out=left_out, shares=(test_share, val_share))


def every_image(folder: Path, image_size: int, channels: int, skip_broken: bool = False) -> Dataset:
    """All images of such a folder as training images, to test something with them: one of a class will do."""
    with disk_errors():
        check_folder(folder)
        merged: Listed = {}
        for root in (_parts(folder) or {"train": folder}).values():
            for name, paths in _spelled_as(merged, _list_classes(root, 0)).items():
                merged.setdefault(name, []).extend(paths)
        broken = [path for path in _every({"": merged}) if not _can_be_read(path)] if skip_broken else []
        merged = _without(merged, set(broken))
        _check_counts(folder, merged, 1, bool(broken))
        if not merged:
            raise DataError(f"{shown(folder)} holds no class folder; put one folder of images per class there")
        with _left_out_advised():
            data = _read("folder", {"train": merged}, (0.0, 0.0), image_size, "L" if channels == 1 else "RGB")
        return replace(data, left_out=tuple(class_name(str(path.relative_to(folder))) for path in broken))


def unread_in(folder: Path) -> tuple[Counter[str], int]:
    """What the class folders hold besides images: files by their suffix, and deeper folders."""
    suffixes, deeper = Counter[str](), 0
    with disk_errors():
        for root in (_parts(folder) or {"train": folder}).values():
            for inner in (path for of_class in _folders(root) for path in of_class.iterdir()):
                if inner.name.startswith("."):
                    continue
                if inner.is_dir():
                    deeper += 1
                elif not is_image(inner):
                    suffixes[inner.suffix.lower() or "no suffix"] += 1
    return suffixes, deeper


def lists_classes(folder: Path, inner: Path) -> bool:
    """Whether `inner` is, or would be, among the folders of a folder's classes, or in one of them."""
    with disk_errors():
        if not folder.is_dir() or not has_classes(folder):
            return False
        roots = _parts(folder) or {"train": folder}
        place = inner.resolve()
        return not {place, *place.parents}.isdisjoint(root.resolve() for root in roots.values())


def load_miniimagenet(folder: Path | None = None) -> Dataset:
    """MiniImageNet at 84 x 84 in RGB, from FOLDER/mini-imagenet/<class>/<image>, split as in `from_folder`."""
    place = find(folder, miniimagenet_in)
    if place is None:
        roots = places(folder)
        raise DataError(
            f"miniimagenet is not in {' or '.join(shown(root) for root in roots)}, and ImageNet's licence allows no "
            f"free download; put one sub-folder of images per class into {shown(roots[0] / 'mini-imagenet')}"
        )
    classes = _list_classes(place)
    _check_counts(place, classes, 2)
    return _read("miniimagenet", {"train": classes}, shares_of("", (), None, None), MINIIMAGENET_SIZE, "RGB")


def miniimagenet_in(root: Path) -> Path | None:
    """Where its class folders are, in a folder that may hold other datasets."""
    return next((root / name for name in ("mini-imagenet", "miniimagenet") if (root / name).is_dir()), None)


def count_miniimagenet(folder: Path | None = None) -> int:
    """Images in the folders of its classes, 0 if there are none; they may be a part of all."""
    with disk_errors():
        place = find(folder, miniimagenet_in)
        return 0 if place is None else sum(len(_images(classes)) for classes in _folders(place))


def has_classes(folder: Path) -> bool:
    """Whether a folder has sub-folders of images, at once or below train/."""
    return bool(_parts(folder)) or any(map(_images, _folders(folder)))


def _parts(folder: Path) -> dict[str, Path]:
    """The folders train, test and val, if there are class folders below the first of them; else none.

    A class may be called train, too: its folder has images.
    """
    inner = {path.name.lower(): path for path in _folders(folder)}
    found = {part: inner[name] for part, names in PARTS.items() for name in reversed(names) if name in inner}
    train = found.get("train")
    return found if train is not None and _folders(train) and not _images(train) else {}


def _list_classes(root: Path, fewest: int = 2) -> Listed:
    """The image files of each class, both sorted by name."""
    folders = _folders(root)
    if len(folders) < fewest:
        raise DataError(f"{shown(root)} holds {len(folders)} class folders; put one folder of images per class there")
    _refuse_twice(folder.name for folder in folders)
    return {folder.name: _images(folder) for folder in folders}


def _folders(folder: Path) -> list[Path]:
    visible = (path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    return sorted(visible, key=lambda path: path.name)


def _images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if is_image(path) and not path.is_dir())


def _every(listed: dict[str, Listed]) -> Iterator[Path]:
    return (path for classes in listed.values() for paths in classes.values() for path in paths)


def _without(classes: Listed, broken: set[Path]) -> Listed:
    return {name: [path for path in paths if path not in broken] for name, paths in classes.items()}


def _spelled_as(known: Listed, classes: Listed) -> Listed:
    """The classes of one part, by the names that they have in another."""
    return dict(zip(spelling(known, classes), classes.values(), strict=True))


def _refuse_twice(names: Iterable[str]) -> None:
    shared = twice(names)
    if shared is not None:
        raise DataError(f"two class folders are called {shown(shared)}, as far as it can be read; rename one of them")


def _check_counts(root: Path, classes: Listed, least: int, skipped: bool = False) -> None:
    for name, paths in classes.items():
        if len(paths) < least:
            wanted = "two there, one to train and one to test" if least == 2 else "one there"
            raise DataError(
                f"the class folder {shown(root / name)} holds {len(paths)} images{' that can be read' * skipped}; "
                f"put at least {wanted}"
            )


def _check_classes(roots: dict[str, Path], listed: dict[str, Listed]) -> None:
    """What is tested must have been learned, and all that is learned is tested; validating may wait for a few."""
    for part in ("test", "val"):
        for name, paths in listed.get(part, {}).items():
            if paths and name not in listed["train"]:
                raise DataError(
                    f"{shown(roots[part])} has the class {shown(name)} but {shown(roots['train'])} has not; "
                    "add images of it there, or remove it"
                )
    for name in listed["train"]:
        if "test" in listed and not listed["test"].get(name):
            raise DataError(
                f"{shown(roots['train'])} has the class {shown(name)} but {shown(roots['test'])} has no image of it; "
                "add one to test it, or remove the class"
            )


def _read(name: str, listed: dict[str, Listed], shares: tuple[float, float], size: int, mode: str) -> Dataset:
    """The splits: those that are there, and shares of the training images for the others."""
    classes = tuple(listed["train"])
    names = tuple(map(class_name, classes))
    _refuse_twice(names)
    paths = {
        part: [(path, n) for n, c in enumerate(classes) for path in own.get(c, ())] for part, own in listed.items()
    }
    every = paths["train"]
    shared = share_out(np.array([label for _, label in every]), *shares)
    for part, mask in zip(("train", "val", "test"), shared, strict=True):
        if part == "train" or part not in paths:
            paths[part] = [every[index] for index in np.flatnonzero(mask)]
    splits = {part: _read_split(labelled, size, mode) for part, labelled in paths.items()}
    return Dataset(name, splits["train"], splits["val"], splits["test"], classes=names)


def _read_split(labelled: Sequence[tuple[Path, int]], size: int, mode: str) -> Split:
    shape = (len(labelled), Image.getmodebands(mode), size, size)
    try:
        images = np.empty(shape, dtype=np.uint8)
    except MemoryError as error:
        raise DataError(
            f"{len(labelled)} images of shape {shape[1:]} do not fit in memory; use fewer or smaller ones"
        ) from error
    for index, (path, _) in enumerate(labelled):
        images[index] = read_image(path, size, mode)
    return Split(images, np.array([label for _, label in labelled], dtype=np.int64))


@contextmanager
def _left_out_advised() -> Iterator[None]:
    """An image that cannot be read need not be removed by hand."""
    try:
        yield
    except BrokenImageError as error:
        raise DataError(f"{error}, or set skip_broken to leave such images out") from error


def _can_be_read(path: Path) -> bool:
    try:
        read_image(path, 1, "L")
    except DataError:
        return False
    return True


def _is_grey(path: Path) -> bool:
    with _opened(path) as image:
        palette = image.getpalette() if image.mode == "P" else None
        if palette is not None:
            return palette[::3] == palette[1::3] == palette[2::3]
        return image.mode in GREY_MODES


def read_image(path: Path, size: int, mode: str) -> npt.NDArray[np.uint8]:
    """An image file as bytes (channels, size, size), in grey (L) or colour (RGB)."""
    with _opened(path) as image:
        return squared(image, size, mode, path)


def squared(image: Image.Image, size: int, mode: str, name: str | Path = "the image") -> npt.NDArray[np.uint8]:
    """The same of a picture that has been opened."""
    picture = _opaque(eight_bits(name, _upright(image))).convert(mode)
    # The same as shorter side to `size`, then crop the centre, without ever making the long strip that an image
    # of 1 x 1,000,000 pixels would become.
    width, height = picture.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    square = picture.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
    return np.asarray(square).reshape(size, size, -1).transpose(2, 0, 1)


def _upright(image: Image.Image) -> Image.Image:
    """The picture as it is to be looked at: cameras note how they were held."""
    image.load()  # which must not fail unnoticed
    try:
        turned = image.getexif().get(ORIENTATION, 1) != 1
    except Exception:  # damaged notes are no reason to refuse the pixels
        return image
    return ImageOps.exif_transpose(image) if turned else image


def _opaque(image: Image.Image) -> Image.Image:
    """The picture on white, where it is transparent: what colour a pixel hides is an accident."""
    if not image.has_transparency_data:
        return image
    picture = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)


def is_image(path: Path) -> bool:
    """Whether a file has the name of an image that can be read."""
    return path.suffix.lower() in _formats()[1] and not path.name.startswith(".")


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """Open an image file, its size checked before a pixel is decoded; any problem becomes a DataError."""
    formats, _ = _formats()
    try:
        # A regular file, or a link to one: reading a pipe with an image's name would block forever.
        if not path.is_file():
            raise BrokenImageError(f"{shown(path)} is a broken link or not a regular file; replace or remove it")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # e.g. about odd metadata: only the pixels count here
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=formats) as image:
                if image.width * image.height > MOST_PIXELS:
                    raise Image.DecompressionBombError
                yield image
    except BrokenImageError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise BrokenImageError(
            f"{shown(path)} has more than {MOST_PIXELS:,} pixels; make it smaller or remove it"
        ) from error
    except Exception as error:  # Pillow's decoders raise nearly everything, from SyntaxError to struct.error
        raise BrokenImageError(f"{shown(path)} cannot be read as an image; replace or remove it") from error


def eight_bits(path: str | Path, image: Image.Image) -> Image.Image:
    """Deep greys scaled to 0..255, because Pillow's own conversion clips everything above 255."""
    if image.mode[0] not in "IF":
        return image
    values = np.asarray(image).astype(np.int64)
    if image.mode == "F" or values.min() < 0 or values.max() > 65_535:
        raise BrokenImageError(f"{shown(path)} has pixels that are not 0 to 65535; save it with 8 or 16 bits per pixel")
    return Image.fromarray(((values + 128) // 257).astype(np.uint8))


@cache
def _formats() -> tuple[list[str], frozenset[str]]:
    """The formats that Pillow may try, and the suffixes of their files."""
    suffixes = Image.registered_extensions()  # loads all of Pillow's plugins, so call it before reading Image.ID
    formats = [format for format in Image.ID if format not in NOT_PICTURES]
    return formats, frozenset(suffix for suffix, format in suffixes.items() if format not in NOT_PICTURES)
