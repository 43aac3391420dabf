"""torch Datasets and DataLoaders as a user has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)
from torch.utils.data import Dataset as TorchDataset

import autorecall
from autorecall import NaiveConfig, from_arrays, from_dataset
from autorecall.config import RunConfig
from autorecall.networks import MLPConfig
from autorecall.runs.run import run
from autorecall.stream import StreamConfig

from .conftest import Refused

RNG = np.random.default_rng(11)
X = RNG.integers(0, 256, (10, 3, 8, 6), dtype=np.uint8)
Y = (np.arange(10) % 2).tolist()
SAME = from_arrays((X, Y), (X, Y), (X[:4], Y[:4])).fingerprint()
FLOATS = from_arrays((X / np.float32(255), Y), (X / np.float32(255), Y), (X[:4] / np.float32(255), Y[:4])).fingerprint()


class Pairs(TorchDataset[object]):
    """A dataset as torchvision writes them: an image, a transform, a label."""

    def __init__(self, image: Callable[[int], object], count: int = 10, label: Callable[[int], object] = Y.__getitem__):
        self.image, self.count, self.label = image, count, label
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> object:
        self.asked.append(index)
        return self.image(index), self.label(index)


def last(index: int) -> np.ndarray:
    """An image with its channels last, as Pillow and OpenCV have them."""
    return np.moveaxis(X[index], 0, -1)


KINDS: dict[str, Callable[[int], object]] = {
    "Pillow": lambda index: Image.fromarray(np.ascontiguousarray(last(index))),
    "array, channels last": last,
    "array, channels first": lambda index: X[index],
    "tensor, channels first": lambda index: torch.from_numpy(X[index].copy()),
    "tensor, channels last": lambda index: torch.from_numpy(last(index).copy()),
    "tensor that requires a gradient": lambda index: torch.tensor(X[index] / np.float32(255), requires_grad=True),
    "floats": lambda index: torch.from_numpy(X[index].copy()).float() / 255,
    "doubles": lambda index: X[index] / 255.0,
    "floats, channels last": lambda index: last(index) / 255.0,
}


@pytest.mark.parametrize("kind", KINDS)
def test_images_of_any_kind(kind: str) -> None:
    data = from_dataset(Pairs(KINDS[kind]), Pairs(KINDS[kind]), Pairs(KINDS[kind], 4))
    bytes_kept = data.train.inputs.dtype == np.uint8
    assert bytes_kept != (kind in ("floats", "doubles", "floats, channels last", "tensor that requires a gradient"))
    assert data.fingerprint() == (SAME if bytes_kept else FLOATS)


@pytest.mark.parametrize("mode", ["L", "1", "I;16"])
def test_grey_images_have_one_channel(mode: str) -> None:
    image = Image.fromarray((X[0, 0].astype(np.uint16) * 257) if mode == "I;16" else X[0, 0])
    image = image if mode == "I;16" else image.convert(mode)
    data = from_dataset(Pairs(lambda _: image), Pairs(lambda _: image))
    assert data.input_shape == (1, 8, 6)
    if mode != "1":
        np.testing.assert_array_equal(data.train.inputs[0, 0], X[0, 0])


def test_every_item_is_taken_once_with_its_transform() -> None:
    train = Pairs(lambda index: X[index] // 2)
    data = from_dataset(train, Pairs(KINDS["Pillow"]))
    assert train.asked == list(range(10))
    np.testing.assert_array_equal(data.train.inputs, X // 2)
    assert len(data.val) == 0


@pytest.mark.parametrize("label", [int, np.int32, torch.tensor, lambda n: np.array([n]), lambda n: torch.tensor([n])])
def test_labels_of_any_kind(label: Callable[[int], object]) -> None:
    train = Pairs(KINDS["Pillow"], label=lambda index: label(Y[index]))
    assert from_dataset(train, train).train.labels.tolist() == Y


def test_tensors_and_lists_will_do() -> None:
    both = TensorDataset(torch.from_numpy(X), torch.tensor(Y))
    assert from_dataset(both, both, Subset(both, range(4))).fingerprint() == SAME
    pairs: Any = list(zip(X, Y, strict=True))
    assert from_dataset(pairs, pairs, pairs[:4]).fingerprint() == SAME


def test_vectors_will_do() -> None:
    vectors = TensorDataset(torch.randn(10, 5), torch.tensor(Y))
    assert from_dataset(vectors, vectors).input_shape == (5,)


# Names


def test_class_names_are_those_of_the_training_data() -> None:
    train, test = Pairs(KINDS["Pillow"]), Pairs(KINDS["Pillow"])
    assert from_dataset(train, test).classes == ("0", "1")
    train.classes = ["cat", "dog"]  # type: ignore[attr-defined]
    for source in (train, Subset(train, range(8)), DataLoader(Subset(train, range(8)), shuffle=True)):
        assert from_dataset(source, test).classes == ("cat", "dog")
    assert from_dataset(train, test, classes=["a", "b", "c"]).classes == ("a", "b", "c")
    train.classes = 2  # type: ignore[attr-defined]
    assert from_dataset(train, test).classes == ("0", "1")


def test_other_names_in_the_test_data_are_refused(refused: Refused) -> None:
    train, test, few = Pairs(KINDS["Pillow"]), Pairs(KINDS["Pillow"]), Pairs(KINDS["Pillow"])
    train.classes, test.classes, few.classes = ["ant", "bee"], ["bee", "cat"], ["ant"]  # type: ignore[attr-defined]
    with refused("class 0 of the test dataset is 'bee' but of the training dataset 'ant'; give both the same"):
        from_dataset(train, test)
    with refused("class 1 of the val dataset is none but of the training dataset 'bee'"):
        from_dataset(train, train, few)
    assert from_dataset(train, test, classes=["a", "b"]).classes == ("a", "b")


# DataLoaders


def loaders(source: Pairs) -> dict[str, DataLoader[Any]]:
    return {
        "plain": DataLoader(source, batch_size=3),
        "shuffled": DataLoader(source, batch_size=3, shuffle=True),
        "without the last batch": DataLoader(source, batch_size=4, drop_last=True, shuffle=True),
        "one at a time": DataLoader(source, batch_size=None),
        "a batch sampler": DataLoader(source, batch_sampler=Batches(SequentialSampler(source), 4, False)),
        "a way to collate": DataLoader(source, batch_size=3, collate_fn=lambda batch: tuple(zip(*batch, strict=True))),
    }


class Batches(BatchSampler):
    """One of a user's own."""


@pytest.mark.parametrize("kind", [kind for kind in loaders(Pairs(last)) if kind != "one at a time"])
def test_loaders_give_the_data_in_their_own_order(kind: str) -> None:
    source = Pairs(KINDS["tensor, channels first"])
    data = from_dataset(loaders(source)[kind], loaders(source)[kind], Subset(source, range(4)))
    assert data.fingerprint() == SAME


def test_what_a_sampler_leaves_out_is_left_out() -> None:
    source = Pairs(KINDS["Pillow"])
    data = from_dataset(DataLoader(source, sampler=SubsetRandomSampler([7, 2, 5])), source)
    np.testing.assert_array_equal(data.train.inputs, X[[2, 5, 7]])


class Endless(IterableDataset[object]):
    def __iter__(self) -> Iterator[object]:
        return iter([(torch.from_numpy(image), label) for image, label in zip(X, Y, strict=True)])


def test_a_loader_of_what_can_only_be_gone_through() -> None:
    data = from_dataset(DataLoader(Endless(), batch_size=3), Pairs(last), Pairs(last, 4))
    assert data.fingerprint() == SAME


# What cannot be taken


@pytest.mark.parametrize(
    ("train", "sentence"),
    [
        (Endless(), "train is a Endless; give a map-style torch Dataset"),
        (3, "train is a int; give a map-style torch Dataset"),
        ([], "the train split is empty"),
        ([1, 2], "train item 0 is a int, not a pair; give (image, class number)"),
        ([{"image": X[0], "label": 0}], "train item 0 is a dict, not a pair"),
        ([(X[0], 0, 0)], "train item 0 is a tuple, not a pair"),
        ([("cat.png", 0)], "train item 0 has a str as image; give a Pillow image, an array or a tensor"),
        ([(X[0].astype(int), 0)], "train item 0 has an image of int64; give uint8 from 0 to 255, or floats in [0, 1]"),
        ([(X[0, :0], 0)], "train item 0 has an image of shape (0, 8, 6)"),
        ([(X[0], 0), (X[0, :, :4], 0)], "train item 1 has shape (3, 4, 6) but the first (3, 8, 6); give all one size"),
        ([(X[0], 0), (X[0] / 2, 0)], "train item 1 is float32 but the first uint8; give all one type"),
        ([(X[0], 0.5)], "train item 0 has the label 0.5; give a whole number from 0"),
        ([(X[0], True)], "train item 0 has the label True"),
        ([(X[0], "cat")], "train item 0 has the label cat"),
        ([(X[0], torch.tensor([0.0, 1.0]))], "train item 0 has the label tensor([0., 1.])"),
        ([(X[0], 2**70)], "train item 0 has the label 1180591620717411303424"),
        ([(X[0], -1)], "train label 0 is -1"),
        ([(X[0] / np.nan, 0)], "train input 0 holds a number that is not finite"),
        (DataLoader(Pairs(last), batch_size=None), "a batch of train does not have as many labels as images"),
    ],
)
def test_one_sentence_for_what_cannot_be_taken(train: Any, sentence: str, refused: Refused) -> None:
    with refused(sentence):
        from_dataset(train, Pairs(last))


def test_an_error_of_the_dataset_itself_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        from_dataset(Pairs(lambda index: 1 / 0), Pairs(last))


# The whole pipeline


def test_a_dataset_is_learned_and_its_folder_resumed(tmp_path: Any) -> None:
    source = Pairs(KINDS["Pillow"])
    config = RunConfig("arrays", MLPConfig((8,)), StreamConfig(1, batch_size=2), NaiveConfig(0.1), threads=1)
    results = []
    for _ in range(2):  # the second finds the first, as the data are the same however they are shuffled
        data = from_dataset(DataLoader(source, shuffle=True), source, classes=["cat", "dog"])
        results.append(run("own/naive", config, data, tmp_path / "run"))
    assert results[0] == results[1]
    assert results[0].tasks == [["cat"], ["dog"]]


def test_it_is_a_public_name() -> None:
    assert autorecall.from_dataset is from_dataset
    assert "from_npz" in dir(autorecall)
