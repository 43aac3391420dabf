"""A user's own folder: with train/ and test/, with shares, with a class of few images, with broken ones."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from autorecall.data import Dataset, Split, from_folder, load
from autorecall.data.folders import every_image

from .conftest import Refused


def write(path: Path, value: int, mode: str = "L") -> None:
    """An image of one grey, which is its name in tests."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (4, 4), value if mode == "L" else (value, value, value)).save(path)


def lay(root: Path, counts: Mapping[str, int], start: int = 0) -> Path:
    """Images below root/<class>/, counted through from `start`."""
    value = start
    for name, count in counts.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            write(root / name / f"{number:03}.png", value)
            value += 1
    return root


def greys(split: Split) -> list[int]:
    return [int(image[0, 0, 0]) for image in split.inputs]


def read(folder: Path, **settings: object) -> Dataset:
    return from_folder(folder, image_size=4, **settings)  # type: ignore[arg-type]


# train/ and test/


@pytest.mark.parametrize(
    "names", [("train", "test", "val"), ("Train", "Test", "valid"), ("TRAIN", "test", "validation")]
)
def test_train_test_and_val_are_taken_as_such(names: tuple[str, str, str], tmp_path: Path) -> None:
    for start, name in zip((0, 100, 200), names, strict=True):
        lay(tmp_path / name, {"cat": 3, "dog": 1}, start)
    data = read(tmp_path)
    assert data.classes == ("cat", "dog")
    assert (greys(data.train), data.train.labels.tolist()) == ([0, 1, 2, 3], [0, 0, 0, 1])
    assert (greys(data.test), data.test.labels.tolist()) == ([100, 101, 102, 103], [0, 0, 0, 1])
    assert (greys(data.val), data.val.labels.tolist()) == ([200, 201, 202, 203], [0, 0, 0, 1])


def test_without_val_there_is_none_unless_a_share_is_given(tmp_path: Path) -> None:
    lay(tmp_path / "train", {"cat": 4, "dog": 2})
    lay(tmp_path / "test", {"cat": 1, "dog": 1}, 100)
    data = read(tmp_path)
    assert (len(data.train), len(data.val), len(data.test)) == (6, 0, 2)
    assert data.val.inputs.shape == (0, 1, 4, 4)
    data = read(tmp_path, val_share=0.5)
    assert (greys(data.train), greys(data.val), greys(data.test)) == ([0, 1, 4], [2, 3, 5], [100, 101])


def test_without_test_a_share_is_taken_if_it_is_given(tmp_path: Path, refused: Refused) -> None:
    lay(tmp_path / "train", {"cat": 4, "dog": 2})
    lay(tmp_path / "val", {"cat": 1, "dog": 1}, 100)
    with refused(str(tmp_path), "has training images but none to test", "set test_share, such as 0.2"):
        read(tmp_path)
    data = read(tmp_path, test_share=0.25)
    assert (greys(data.train), greys(data.val), greys(data.test)) == ([0, 1, 2, 4], [100, 101], [3, 5])


def test_shares_of_what_is_there_are_refused(tmp_path: Path, refused: Refused) -> None:
    for part in ("train", "test", "val"):
        lay(tmp_path / part, {"cat": 2, "dog": 2})
    with refused("test_share is 0.2", "has test images of its own"):
        read(tmp_path, test_share=0.2)
    with refused("val_share is 0.2", "has val images of its own"):
        read(tmp_path, val_share=0.2)


def test_a_class_that_is_not_tested_is_named(tmp_path: Path, refused: Refused) -> None:
    lay(tmp_path / "train", {"cat": 2, "dog": 2, "owl": 2})
    lay(tmp_path / "test", {"cat": 2, "owl": 0, "dog": 2})
    for _ in range(2):
        sentence = f"{tmp_path / 'train'} has the class owl but {tmp_path / 'test'} has no image of it"
        with refused(sentence, "add one to test it, or remove the class"):
            read(tmp_path)
        if (tmp_path / "test" / "owl").exists():
            (tmp_path / "test" / "owl").rmdir()


@pytest.mark.parametrize("part", ["test", "val"])
def test_a_class_that_is_not_learned_is_named(part: str, tmp_path: Path, refused: Refused) -> None:
    lay(tmp_path / "train", {"cat": 2, "dog": 2})
    lay(tmp_path / "test", {"cat": 2, "dog": 2})
    lay(tmp_path / part, {"cat": 2, "owl": 1})
    with refused(f"{tmp_path / part} has the class owl but {tmp_path / 'train'} has not; add images of it"):
        read(tmp_path)


def test_val_may_lack_a_class(tmp_path: Path) -> None:
    lay(tmp_path / "train", {"cat": 2, "dog": 2, "owl": 1})
    lay(tmp_path / "test", {"cat": 2, "dog": 2, "owl": 1})
    lay(tmp_path / "val", {"owl": 1, "dog": 1}, 100)
    data = read(tmp_path)
    assert (greys(data.val), data.val.labels.tolist()) == ([101, 100], [1, 2])
    for name in ("owl", "dog"):
        shutil.rmtree(tmp_path / "val" / name)
        data = read(tmp_path)
        assert data.val.labels.tolist() == ([1] if name == "owl" else [])


def test_an_empty_class_to_train_is_refused(tmp_path: Path, refused: Refused) -> None:
    lay(tmp_path / "train", {"cat": 2, "dog": 0})
    lay(tmp_path / "test", {"cat": 2, "dog": 2})
    with refused(f"the class folder {tmp_path / 'train' / 'dog'} holds 0 images; put at least one there"):
        read(tmp_path)


def test_folders_beside_train_and_test_are_passed_over(tmp_path: Path) -> None:
    for part in ("train", "test", "labels", "extra"):
        lay(tmp_path / part, {"cat": 2, "dog": 2})
    assert len(read(tmp_path).train) == 4


def test_accents_may_be_letters_of_their_own_in_one_part(tmp_path: Path) -> None:
    """As they are in folders from a Mac."""
    lay(tmp_path / "train", {"caf\u00e9": 2, "tea": 2})
    lay(tmp_path / "test", {"cafe\u0301": 1, "tea": 1}, 10)
    data = read(tmp_path)
    assert data.classes == ("caf\u00e9", "tea")
    assert (greys(data.test), data.test.labels.tolist()) == ([10, 11], [0, 1])
    every = every_image(tmp_path, 2, 1)
    assert every.classes == ("caf\u00e9", "tea")
    assert (greys(every.train), every.train.labels.tolist()) == ([0, 1, 10, 2, 3, 11], [0, 0, 0, 1, 1, 1])


@pytest.mark.parametrize("part", ["train", "test", "val"])
def test_two_classes_of_one_name_are_refused_in_any_part(tmp_path: Path, refused: Refused, part: str) -> None:
    for name in ("train", "test", "val"):
        lay(tmp_path / name, {"caf\u00e9": 2, "tea": 2})
    lay(tmp_path / part, {"cafe\u0301": 2})
    for reader in (read, lambda folder: every_image(folder, 2, 1)):
        with refused("two class folders are called caf", "as far as it can be read; rename one of them"):
            reader(tmp_path)


def test_classes_may_be_called_train_and_test(tmp_path: Path) -> None:
    """Their folders have images, as those of classes do; deeper folders are passed over as ever."""
    lay(tmp_path, {"test": 5, "train": 5})
    assert read(tmp_path).classes == ("test", "train")
    (tmp_path / "train" / "thumbnails").mkdir()
    assert read(tmp_path).classes == ("test", "train")


def test_one_colour_image_in_any_part_makes_all_of_them_colour(tmp_path: Path) -> None:
    for part in ("train", "test", "val"):
        lay(tmp_path / part, {"cat": 2, "dog": 2})
    assert read(tmp_path).input_shape == (1, 4, 4)
    write(tmp_path / "val" / "dog" / "000.png", 9, mode="RGB")
    assert read(tmp_path).input_shape == (3, 4, 4)


# Shares


def test_a_flat_folder_is_split_by_shares(tmp_path: Path) -> None:
    lay(tmp_path, {"cat": 10, "dog": 3})
    data = load("folder", tmp_path, 4, test_share=0.3, val_share=0.2)
    assert greys(data.train) == [0, 1, 2, 3, 4, 10]
    assert greys(data.val) == [5, 6, 11]
    assert greys(data.test) == [7, 8, 9, 12]
    assert data.fingerprint() == read(tmp_path, test_share=0.3, val_share=0.2).fingerprint()


def test_without_shares_a_folder_is_split_as_ever(tmp_path: Path) -> None:
    lay(tmp_path, {"cat": 50, "dog": 3})
    data = read(tmp_path)
    assert greys(data.train) == [*range(38), 50, 51]
    assert (greys(data.val), greys(data.test)) == ([38, 39], [*range(40, 50), 52])
    assert data.fingerprint() == read(tmp_path, test_share=0.2, val_share=0.04).fingerprint()
    assert data.left_out == ()


@pytest.mark.parametrize("settings", [{"test_share": 1.5}, {"val_share": -1.0}, {"test_share": 0.5, "val_share": 0.5}])
def test_impossible_shares_are_refused(settings: dict[str, float], tmp_path: Path, refused: Refused) -> None:
    lay(tmp_path, {"cat": 2, "dog": 2})
    with refused("_share", "expected"):
        read(tmp_path, **settings)


@pytest.mark.parametrize("name", ["mnist", "cifar10", "miniimagenet", "mnist-full"])
def test_what_is_for_own_data_is_refused_for_others(name: str, refused: Refused) -> None:
    with refused(f"{name} has splits of its own"):
        load(name, test_share=0.2)
    with refused(f"skip_broken is given, but {name} is not a folder of your own"):
        load(name, skip_broken=True)


# Images that cannot be read


def spoil(root: Path) -> list[str]:
    """One of every kind: junk, cut off, empty, a broken link, a pipe, too many pixels and floats."""
    (root / "cat" / "a.png").write_text("junk")
    whole = (root / "cat" / "000.png").read_bytes()
    (root / "cat" / "b.png").write_bytes(whole[: len(whole) // 2])
    (root / "cat" / "c.jpg").write_bytes(b"")
    (root / "dog" / "d.png").symlink_to(root / "nowhere")
    os.mkfifo(root / "dog" / "e.png")
    Image.new("1", (10_000, 5_001)).save(root / "dog" / "f.png")
    Image.fromarray(np.full((4, 4), 0.5, dtype=np.float32)).save(root / "dog" / "g.tif")
    return ["cat/a.png", "cat/b.png", "cat/c.jpg", "dog/d.png", "dog/e.png", "dog/f.png", "dog/g.tif"]


def test_broken_images_are_refused_and_the_way_out_is_said(tmp_path: Path, refused: Refused) -> None:
    lay(tmp_path, {"cat": 5, "dog": 5})
    for name in spoil(tmp_path):
        with refused("set skip_broken to leave such images out"):
            read(tmp_path)
        (tmp_path / name).unlink()
    assert len(read(tmp_path).train) == 8


def test_broken_images_are_left_out_as_if_they_were_not_there(tmp_path: Path) -> None:
    lay(tmp_path, {"cat": 5, "dog": 5})
    whole = read(tmp_path)
    broken = spoil(tmp_path)
    data = read(tmp_path, skip_broken=True)
    assert list(data.left_out) == broken
    assert data.fingerprint() == whole.fingerprint()
    assert data.input_shape == (1, 4, 4)


def test_broken_images_of_every_part_are_left_out(tmp_path: Path) -> None:
    for part in ("train", "test", "val"):
        lay(tmp_path / part, {"cat": 2, "dog": 2})
        (tmp_path / part / "dog" / "x.png").write_text("")
    data = read(tmp_path, skip_broken=True)
    assert sorted(data.left_out) == ["test/dog/x.png", "train/dog/x.png", "val/dog/x.png"]
    assert (len(data.train), len(data.val), len(data.test)) == (4, 4, 4)


def test_a_class_of_which_too_few_are_left_is_refused(tmp_path: Path, refused: Refused) -> None:
    lay(tmp_path, {"cat": 2, "dog": 2})
    (tmp_path / "dog" / "001.png").write_text("")
    with refused(str(tmp_path / "dog"), "holds 1 images that can be read; put at least two there"):
        read(tmp_path, skip_broken=True)
