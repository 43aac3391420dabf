from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autorecall.data import Dataset, from_arrays
from autorecall.data.arrays import Pair, tail_of_each_class
from autorecall.data.locate import spelling

from .conftest import Refused

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (6, 3, 8, 8), dtype=np.uint8)
LABELS = [0, 1, 2, 0, 1, 2]
GOOD: Pair = (IMAGES, LABELS)


def test_bytes_stay_bytes() -> None:
    data = from_arrays(GOOD, (IMAGES[:2], LABELS[:2]), (IMAGES[2:3], [2]), name="mine")
    assert (data.name, data.input_shape, data.classes) == ("mine", (3, 8, 8), ("0", "1", "2"))
    assert (len(data.train), len(data.val), len(data.test)) == (6, 1, 2)
    assert data.train.inputs.dtype == np.uint8
    assert data.train.labels.dtype == np.int64
    np.testing.assert_array_equal(data.train.inputs, IMAGES)
    np.testing.assert_array_equal(data.val.inputs, IMAGES[2:3])
    np.testing.assert_array_equal(data.test.labels, [0, 1])


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", ">f4", ">f8"])
def test_floats_become_float32(kind: str) -> None:
    values = RNG.normal(size=(6, 5)).astype(kind)
    data = from_arrays((values, LABELS), (values, LABELS))
    assert data.train.inputs.dtype == np.dtype(np.float32)
    np.testing.assert_array_equal(data.train.inputs, values.astype(np.float32))


def test_lists_will_do() -> None:
    data = from_arrays(([[0.5, 1.0], [0.0, 0.25]], [0, 1]), ([[1.0, 1.0]], [1]))
    np.testing.assert_array_equal(data.train.inputs, np.array([[0.5, 1.0], [0.0, 0.25]], dtype=np.float32))


def test_flat_images_get_one_channel_and_nothing_else_is_reshaped() -> None:
    def shape(inputs: np.ndarray) -> tuple[int, ...]:
        return from_arrays((inputs, LABELS), (inputs, LABELS)).input_shape

    assert shape(IMAGES[:, 0]) == (1, 8, 8)
    assert shape(IMAGES[:, 0, 0]) == (8,)
    assert shape(IMAGES[:, 0].astype(np.float32)) == (8, 8)


def test_channels_come_first_wherever_they_were() -> None:
    turned = from_arrays((IMAGES.transpose(0, 2, 3, 1), LABELS), GOOD).train.inputs
    np.testing.assert_array_equal(turned, IMAGES)
    assert turned.flags.c_contiguous
    narrow = np.zeros((6, 3, 8, 3), dtype=np.uint8)  # colour, and three pixels wide
    assert from_arrays((narrow, LABELS), (narrow, LABELS)).input_shape == (3, 8, 3)
    floats = IMAGES.transpose(0, 2, 3, 1) / np.float32(255)
    assert from_arrays((floats, LABELS), (floats, LABELS)).input_shape == (8, 8, 3)  # as they are


def test_no_validation_is_an_empty_split_of_the_same_kind() -> None:
    nothing: list[Pair | None] = [None, ([], []), (IMAGES[:0], [])]
    for val in nothing:
        data = from_arrays(GOOD, GOOD, val)
        assert data.val.inputs.shape == (0, 3, 8, 8)
        assert data.val.inputs.dtype == np.uint8
        assert data.val.labels.shape == (0,)


def test_arrays_are_ready_for_torch() -> None:
    """from_numpy refuses negative strides and warns of arrays that cannot be written to."""
    frozen = IMAGES.copy()
    frozen.flags.writeable = False
    for inputs in (frozen, IMAGES[::-1], IMAGES.transpose(0, 1, 3, 2), np.asfortranarray(IMAGES)):
        split = from_arrays((inputs, np.array(LABELS)[::-1]), (inputs, LABELS)).train
        assert split.inputs.flags.c_contiguous
        assert split.inputs.flags.writeable
        assert split.labels.flags.c_contiguous
        np.testing.assert_array_equal(split.inputs, inputs)
        np.testing.assert_array_equal(split.labels, LABELS[::-1])


def test_tensors_will_do() -> None:
    torch = pytest.importorskip("torch")
    data = from_arrays((torch.tensor(IMAGES), torch.tensor(LABELS)), GOOD)
    np.testing.assert_array_equal(data.train.inputs, IMAGES)
    np.testing.assert_array_equal(data.train.labels, LABELS)


@pytest.mark.parametrize(
    "kind", ["int64", "int32", "int8", "uint16", "bool", "complex64", "object", "U3", "longdouble"]
)
def test_other_types_are_refused(kind: str, refused: Refused) -> None:
    with refused("test inputs are", "give uint8 from 0 to 255, or floats"):
        from_arrays(GOOD, (np.ones((6, 4)).astype(kind), LABELS))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e39])
def test_numbers_must_be_finite(bad: float, refused: Refused) -> None:
    values = np.zeros((6, 2, 2))
    values[4, 1, 0] = bad
    with refused("val input 4 "):
        from_arrays((np.zeros((6, 2, 2)), LABELS), (np.zeros((6, 2, 2)), LABELS), (values, LABELS))


SHAPELESS: list[tuple[Any, str]] = [
    (np.float32(3), "()"),
    (np.ones(6, dtype=np.float32), "(6,)"),
    (np.ones((6, 0), dtype=np.float32), "(6, 0)"),
    (np.ones((6, 0, 4), dtype=np.uint8), "(6, 1, 0, 4)"),
    ([[1.0], [2.0, 3.0]], "cannot be converted to an array"),
]


@pytest.mark.parametrize(("inputs", "part"), SHAPELESS)
def test_inputs_need_a_shape(inputs: Any, part: str, refused: Refused) -> None:
    with refused("train inputs", part):
        from_arrays((inputs, LABELS), GOOD)


BAD_LABELS: list[tuple[Any, str]] = [
    ([0.0, 1.0, 2.0, 0.0, 1.0, 2.0], "train labels are float64"),
    ([True] * 6, "train labels are bool"),
    (list("abcdef"), "train labels are <U1"),
    ([[0]] * 6, "train labels have shape (6, 1)"),
    (0, "train labels have shape ()"),
    ([0, 1, 2], "train has 6 inputs but 3 labels"),
    ([0, 1, -1, 0, 1, 2], "train label 2 is -1; expected 0 to 2"),
    ([0, 1, 2, 0, 1, 3], "train label 5 is 3; expected 0 to 2"),
    (np.full(6, 2**63, dtype=np.uint64), "train labels go up to 9223372036854775808"),
]


@pytest.mark.parametrize(("labels", "part"), BAD_LABELS)
def test_labels_must_number_the_classes(labels: Any, part: str, refused: Refused) -> None:
    with refused(part):
        from_arrays((IMAGES, labels), GOOD, classes=("a", "b", "c"))


def test_unnamed_classes_follow_the_largest_label_of_any_split(refused: Refused) -> None:
    data = from_arrays(GOOD, (IMAGES, [4] * 6))
    assert data.classes == ("0", "1", "2", "3", "4")
    with refused("test label 0 is -3; expected 0 to 2"):
        from_arrays(GOOD, (IMAGES, [-3] * 6))
    with refused("train label 0 is -3; expected 0 to 0"):
        from_arrays((IMAGES, [-3] * 6), (IMAGES, [-3] * 6))
    with refused("labels go up to 1000000000000"):
        from_arrays(GOOD, (IMAGES, [10**12] * 6))


@pytest.mark.parametrize("classes", ["abc", [0, 1, 2], [b"a", b"b", b"c"]])
def test_class_names_are_a_list_of_text(classes: Any, refused: Refused) -> None:
    with refused("classes is", "give a list of names"):
        from_arrays(GOOD, GOOD, classes=classes)


def test_splits_must_agree(refused: Refused) -> None:
    with refused("one test input has shape (3, 8, 7) but one train input (3, 8, 8)"):
        from_arrays(GOOD, (IMAGES[..., :7], LABELS))
    with refused("one val input has shape (1, 8, 8)"):
        from_arrays(GOOD, GOOD, (IMAGES[:, 0], LABELS))
    with refused("test inputs are float32 but train inputs are uint8"):
        from_arrays(GOOD, (IMAGES.astype(np.float32), LABELS))


def test_train_and_test_must_not_be_empty(refused: Refused) -> None:
    with refused("the train split is empty"):
        from_arrays((IMAGES[:0], []), GOOD)
    with refused("the test split is empty"):
        from_arrays(GOOD, ([], []))


@pytest.mark.parametrize("pair", [None, 3, (IMAGES,), (IMAGES, LABELS, LABELS)])
def test_a_split_is_a_pair(pair: Any, refused: Refused) -> None:
    with refused("train is not a pair"):
        from_arrays(pair, GOOD)


def test_fingerprint_notices_every_change() -> None:
    def make(pixel: int = 0, label: int = 0, classes: tuple[str, ...] = ("ab", "c"), shape: Any = (2, 4)) -> Dataset:
        inputs = np.zeros(shape, dtype=np.uint8)
        inputs[1, 0] = pixel
        return from_arrays((inputs, [label, 1]), (inputs, [0, 1]), classes=classes)

    same = make().fingerprint()
    assert len(same) == 64
    assert make().fingerprint() == same
    zeros = np.zeros((2, 1), dtype=np.float32)
    others = [
        make(pixel=1),
        make(label=1),
        make(classes=("a", "bc")),
        make(classes=("ab", "c", "")),
        make(shape=(2, 2, 2)),
        make(classes=("ab", "\ud800")),
        from_arrays((zeros, [0, 1]), (zeros, [0, 1]), classes=("ab", "c")),
    ]
    assert len({same, *(data.fingerprint() for data in others)}) == len(others) + 1


def test_fingerprint_covers_every_split() -> None:
    inputs = np.arange(8, dtype=np.uint8).reshape(4, 2)
    prints = set()
    for moved in range(3):
        splits: list[Pair] = [(inputs, [0, 1, 0, 1])] * 3
        splits[moved] = (inputs[::-1], [0, 1, 0, 1])
        prints.add(from_arrays(splits[0], splits[1], splits[2]).fingerprint())
    assert len(prints) == 3


def test_tail_of_each_class_against_a_plain_loop() -> None:
    labels = RNG.integers(0, 5, 200)
    counts = [0, 3, 7, 1, 1000]
    mask = tail_of_each_class(labels, counts)
    for i, label in enumerate(labels):
        after = sum(1 for other in labels[i + 1 :] if other == label)
        assert mask[i] == (after < counts[label])


@pytest.mark.parametrize("names", [["cat", "cat"], ["caf\u00e9", "cafe\u0301"]])
def test_two_classes_of_one_name_are_refused(refused: Refused, names: list[str]) -> None:
    """Another day, they would be taken for one."""
    images = np.zeros((4, 2, 2), dtype=np.uint8)
    with refused("two classes are called 'ca", "as far as it can be read; give each a name of its own"):
        from_arrays((images, [0, 1, 0, 1]), (images, [0, 1, 0, 1]), classes=names)


def test_a_name_that_is_known_stays_as_it_is() -> None:
    """Earlier versions made runs with both."""
    both = ("caf\u00e9", "cafe\u0301")
    assert spelling(both, both) == both
    assert spelling(both[:1], both) == (both[0], both[0])
