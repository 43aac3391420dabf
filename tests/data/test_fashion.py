from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from autorecall.data import fashion, load, mnist

from .conftest import Made, Refused


@pytest.fixture
def small_fashion(small_mnist: Made, monkeypatch: pytest.MonkeyPatch) -> Made:
    """The same made files under the other name, of which 4 of 60 images per class are drawn and 6 held."""
    monkeypatch.setattr(mnist, "TRAIN_PER_CLASS", 4)
    monkeypatch.setattr(mnist, "VALIDATION_PER_CLASS", 6)
    small_mnist.folder = small_mnist.folder.rename(small_mnist.folder.with_name("fashion-mnist"))
    return small_mnist


def test_it_is_split_like_mnist_5k(small_fashion: Made) -> None:
    data = load("fashion-mnist", small_fashion.folder.parent)
    assert (data.name, data.input_shape, data.classes) == ("fashion-mnist", (1, 28, 28), fashion.CLASSES)
    drawn = set()
    for label in range(10):
        of_class = small_fashion.images[small_fashion.labels == label]
        np.testing.assert_array_equal(data.val.inputs[data.val.labels == label][:, 0], of_class[54:])
        own = [image.tobytes() for image in data.train.inputs[data.train.labels == label]]
        places = [[other.tobytes() for other in of_class[:54]].index(image) for image in own]
        assert len(places) == 4
        assert places == sorted(places)  # in the order of the file
        drawn.add(tuple(places))
    assert len(drawn) > 1  # not simply the first ones
    np.testing.assert_array_equal(data.test.inputs[:, 0], small_fashion.test_images)
    np.testing.assert_array_equal(data.test.labels, small_fashion.test_labels)


def test_files_of_mnist_are_not_taken_for_it(small_mnist: Made, refused: Refused) -> None:
    for folder in (small_mnist.folder, small_mnist.folder.parent):
        with refused(f"fashion-mnist is not in {folder} or", str(folder / "fashion-mnist"), "dataset-fashion-mnist"):
            load("fashion-mnist", folder)


def test_a_damaged_file_is_to_be_replaced_by_one_of_its_own(small_fashion: Made, refused: Refused) -> None:
    path = small_fashion.folder / "train-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with refused(str(path), f"put train-labels-idx1-ubyte.gz from {fashion.HOME} there"):
        load("fashion-mnist", small_fashion.folder.parent)
    path.unlink()
    with refused("holds no train-labels-idx1-ubyte", fashion.HOME):
        load("fashion-mnist", small_fashion.folder.parent)


def test_the_real_files(real: Path) -> None:
    if not (real / "fashion-mnist").is_dir():
        pytest.skip("no Fashion-MNIST in the folder of the real data")
    data = load("fashion-mnist", real)
    for split, each in ((data.train, 500), (data.val, 300), (data.test, 1000)):
        np.testing.assert_array_equal(np.bincount(split.labels), [each] * 10)
    assert data.fingerprint() == "7d99e186ab498a1c4b8dcb389958e2a9c48abfbdda5d9fae2982c11135134185"
