"""Fashion-MNIST (Xiao, Rasul and Vollgraf 2017): clothes and shoes in the files and sizes of MNIST.

"fashion-mnist" has 500 training images per class, drawn as for MNIST-5k, so that the two can be compared. There is no
download: the copies that are about differ in their checksums, though not in their images.
"""

from __future__ import annotations

from pathlib import Path

from autorecall.data.arrays import Dataset, Split
from autorecall.data.locate import find, first_with, places, shown
from autorecall.data.mnist import FILES, five_thousand, read_pair
from autorecall.errors import DataError

CLASSES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
HOME = "https://github.com/zalandoresearch/fashion-mnist"
FOLDER = "fashion-mnist"


def load(folder: Path | None = None) -> Dataset:
    """500 training and 300 validation images per class, and the whole test set."""
    place = find(folder, place_in)
    if place is None:
        roots = places(folder)
        raise DataError(
            f"fashion-mnist is not in {' or '.join(shown(root) for root in roots)}; put its four .gz files from {HOME} "
            f"into {shown(roots[0] / FOLDER)}, or install Debian's dataset-fashion-mnist and give --data "
            "/usr/share/datasets"
        )
    images, labels = read_pair(place, "train", HOME)
    drawn, held = five_thousand(labels)
    test = Split(*read_pair(place, "t10k", HOME))
    return Dataset(FOLDER, Split(images[drawn], labels[drawn]), Split(images[held], labels[held]), test, CLASSES)


def place_in(root: Path) -> Path | None:
    """Where its files are, in a folder that may hold other datasets."""
    return first_with((root / FOLDER,), FILES)
