"""From files on disk to arrays (train, val, test), and nothing else.

    data = load("mnist")                                   # MNIST-5k, comes with the package
    data = load("cifar10", folder=Path("/data"))           # read, or downloaded into the cache
    data = load("folder", folder=Path("photos"), image_size=64)
    data = load("npz", folder=Path("arrays.npz"))
    data = from_arrays(train=(x, y), test=(x_test, y_test))
    data = from_dataset(train, test)                       # torch Datasets or DataLoaders

Datasets other than "mnist", "folder" and "npz" are looked for in `folder`, else in the folder named by the variable
AUTORECALL_DATA, and then in the cache (AUTORECALL_CACHE, or the platform's cache folder). If "mnist-full" or "cifar10"
are in none of these, they are downloaded into the cache, if that is allowed.
"""

from __future__ import annotations

from pathlib import Path

from autorecall.checks import brief
from autorecall.data import cifar10, fashion, folders, mnist
from autorecall.data.arrays import Dataset, Split, from_arrays
from autorecall.data.folders import from_folder
from autorecall.data.locate import disk_errors, shown
from autorecall.data.npz import from_npz
from autorecall.data.torch_datasets import from_dataset
from autorecall.errors import DataError

__all__ = [
    "DATASETS",
    "OWN",
    "Dataset",
    "Split",
    "from_arrays",
    "from_dataset",
    "from_folder",
    "from_npz",
    "load",
    "load_dataset",
]

OWN = ("folder", "npz")  # a user's own data
DATASETS = ("mnist", "mnist-full", "fashion-mnist", "cifar10", "miniimagenet", *OWN)


def load(
    name: str,
    folder: str | Path | None = None,
    image_size: int | None = None,
    progress: bool = False,
    may_download: bool = True,
    test_share: float | None = None,
    val_share: float | None = None,
    skip_broken: bool = False,
) -> Dataset:
    """The dataset of this name; `progress` draws a bar while downloading.

    The shares are for "folder" and "npz", whose `folder` is the file; `image_size` and `skip_broken` are for "folder".
    """
    if name not in DATASETS:
        raise DataError(f"there is no dataset {brief(name)}; choose one of {', '.join(DATASETS)}")
    if image_size is not None and name != "folder":
        raise DataError(f"image_size is {brief(image_size)}, but {name} has a size of its own; leave image_size out")
    if folder is not None and name == "mnist":
        raise DataError(f"mnist comes with the package; leave the folder {shown(folder)} out, or choose mnist-full")
    if name not in OWN and (test_share, val_share) != (None, None):
        raise DataError(f"test_share or val_share is given, but {name} has splits of its own; leave them out")
    if name != "folder" and skip_broken:
        raise DataError(f"skip_broken is given, but {name} is not a folder of your own images; leave it out")
    folder = None if folder is None else Path(folder)
    with disk_errors():
        match name:
            case "mnist":
                return mnist.load_embedded()
            case "mnist-full":
                return mnist.load_full(folder, progress, may_download)
            case "fashion-mnist":
                return fashion.load(folder)
            case "cifar10":
                return cifar10.load(folder, progress, may_download)
            case "miniimagenet":
                return folders.load_miniimagenet(folder)
    if name == "npz":
        if folder is None:
            raise DataError("the dataset npz needs a file; give the path of a .npz file")
        return from_npz(folder, test_share, val_share)
    if folder is None:
        raise DataError("the dataset folder needs a folder; give one that has a sub-folder of images per class")
    size = folders.DEFAULT_SIZE if image_size is None else image_size
    return from_folder(folder, size, test_share, val_share, skip_broken)


def named_in(folder: Path) -> tuple[str, ...]:
    """The datasets with a name of their own that a folder holds."""
    places = {
        "mnist-full": mnist.place_in,
        "fashion-mnist": fashion.place_in,
        "cifar10": cifar10.place_in,
        "miniimagenet": folders.miniimagenet_in,
    }
    return tuple(name for name, look in places.items() if look(folder) is not None)


load_dataset = load  # its public name: autorecall.load is for saved learners
