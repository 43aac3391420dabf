"""One sub-folder of images per class: a user's own folder, and MiniImageNet, which is laid out the same way."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from autorecall.checks import brief
from autorecall.data.arrays import Dataset, Split
from autorecall.data.locate import check_folder, class_name, disk_errors, places, shown
from autorecall.errors import DataError

MINIIMAGENET_SIZE = 84
DEFAULT_SIZE = 32
LARGEST_SIZE = 1024
MOST_PIXELS = 50_000_000

GREY_MODES = ("1", "L", "I", "I;16", "I;16L", "I;16B", "I;16N")
# Registered with Pillow, but not pictures to learn from: EPS starts another program, PDF and PALM can only be written,
# WMF needs Windows, and the others are containers of which Pillow knows only the first bytes.
NOT_PICTURES = ("EPS", "PDF", "PALM", "WMF", "BUFR", "GRIB", "HDF5", "MPEG")


def from_folder(folder: str | Path, image_size: int = DEFAULT_SIZE) -> Dataset:
    """A user's own images: FOLDER/<class>/<image>, made square with sides of image_size.

    Sorted by name, the first 76 % of each class train, the next 4 % validate and the last 20 % test. One channel if
    every image is grey, else RGB. Hidden files, files without an image suffix and deeper folders are skipped.
    """
    if not (isinstance(image_size, int) and 1 <= image_size <= LARGEST_SIZE):
        raise DataError(f"image_size is {brief(image_size)}; give a whole number of pixels from 1 to {LARGEST_SIZE}")
    folder = Path(folder)
    with disk_errors():
        check_folder(folder)
        classes = _list_classes(folder)
        grey = all(_mode(path) in GREY_MODES for images in classes.values() for path in images)
        return _read("folder", classes, image_size, "L" if grey else "RGB")


def load_miniimagenet(folder: Path | None = None) -> Dataset:
    """MiniImageNet at 84 x 84 in RGB, from FOLDER/mini-imagenet/<class>/<image>, split as in `from_folder`."""
    roots = places(folder)
    for place in (root / name for root in roots for name in ("mini-imagenet", "miniimagenet")):
        if place.is_dir():
            return _read("miniimagenet", _list_classes(place), MINIIMAGENET_SIZE, "RGB")
    raise DataError(
        f"miniimagenet is not in {' or '.join(shown(root) for root in roots)}, and ImageNet's licence allows no free "
        f"download; put one sub-folder of images per class into {shown(roots[0] / 'mini-imagenet')}"
    )


def _list_classes(root: Path) -> dict[str, list[Path]]:
    """The image files of each class, both sorted by name."""
    visible = (path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    folders = sorted(visible, key=lambda path: path.name)
    if len(folders) < 2:
        raise DataError(f"{shown(root)} holds {len(folders)} class folders; put one folder of images per class there")
    _, suffixes = _formats()
    classes = {}
    for folder in folders:
        paths = (path for path in folder.iterdir() if not path.name.startswith(".") and not path.is_dir())
        classes[folder.name] = sorted(path for path in paths if path.suffix.lower() in suffixes)
        if len(classes[folder.name]) < 2:
            raise DataError(
                f"the class folder {shown(folder)} holds {len(classes[folder.name])} images; "
                "put at least two there, one to train and one to test"
            )
    return classes


def split_counts(count: int) -> tuple[int, int, int]:
    """76 / 4 / 20 % to train, validate and test; with two or more images, at least one to train and one to test.

    >>> split_counts(600), split_counts(100), split_counts(2)
    ((456, 24, 120), (76, 4, 20), (1, 0, 1))
    """
    test, val = max(1, round(0.20 * count)), round(0.04 * count)
    return count - val - test, val, test


def _read(name: str, classes: dict[str, list[Path]], size: int, mode: str) -> Dataset:
    train: list[tuple[Path, int]] = []
    val: list[tuple[Path, int]] = []
    test: list[tuple[Path, int]] = []
    for label, paths in enumerate(classes.values()):
        labelled = [(path, label) for path in paths]
        first, middle, _ = split_counts(len(paths))
        train += labelled[:first]
        val += labelled[first : first + middle]
        test += labelled[first + middle :]
    return Dataset(
        name,
        _read_split(train, size, mode),
        _read_split(val, size, mode),
        _read_split(test, size, mode),
        classes=tuple(map(class_name, classes)),
    )


def _read_split(labelled: list[tuple[Path, int]], size: int, mode: str) -> Split:
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


def _mode(path: Path) -> str:
    with _opened(path) as image:
        return image.mode


def read_image(path: Path, size: int, mode: str) -> npt.NDArray[np.uint8]:
    """An image file as bytes (channels, size, size), in grey (L) or colour (RGB)."""
    with _opened(path) as image:
        return squared(image, size, mode, path)


def squared(image: Image.Image, size: int, mode: str, name: str | Path = "the image") -> npt.NDArray[np.uint8]:
    """The same of a picture that has been opened."""
    picture = _eight_bits(name, image).convert(mode)
    # The same as shorter side to `size`, then crop the centre, without ever making the long strip that an image
    # of 1 x 1,000,000 pixels would become.
    width, height = picture.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    square = picture.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
    return np.asarray(square).reshape(size, size, -1).transpose(2, 0, 1)


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
            raise DataError(f"{shown(path)} is a broken link or not a regular file; replace or remove it")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # e.g. about odd metadata: only the pixels count here
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=formats) as image:
                if image.width * image.height > MOST_PIXELS:
                    raise Image.DecompressionBombError
                yield image
    except DataError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(f"{shown(path)} has more than {MOST_PIXELS:,} pixels; make it smaller or remove it") from error
    except Exception as error:  # Pillow's decoders raise nearly everything, from SyntaxError to struct.error
        raise DataError(f"{shown(path)} cannot be read as an image; replace or remove it") from error


def _eight_bits(path: str | Path, image: Image.Image) -> Image.Image:
    """Deep greys scaled to 0..255, because Pillow's own conversion clips everything above 255."""
    if image.mode[0] not in "IF":
        return image
    values = np.asarray(image).astype(np.int64)
    if image.mode == "F" or values.min() < 0 or values.max() > 65_535:
        raise DataError(f"{shown(path)} has pixels that are not 0 to 65535; save it with 8 or 16 bits per pixel")
    return Image.fromarray(((values + 128) // 257).astype(np.uint8))


@cache
def _formats() -> tuple[list[str], frozenset[str]]:
    """The formats that Pillow may try, and the suffixes of their files."""
    suffixes = Image.registered_extensions()  # loads all of Pillow's plugins, so call it before reading Image.ID
    formats = [format for format in Image.ID if format not in NOT_PICTURES]
    return formats, frozenset(suffix for suffix, format in suffixes.items() if format not in NOT_PICTURES)
