"""`autorecall run --data` without a preset: what is taken for images of one's own, and why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from autorecall import GaussiansConfig, PatchesConfig, StreamConfig, load_model
from autorecall.commands.own_data import best_preset, fitted, images_for_filters
from autorecall.data import Dataset, from_arrays
from autorecall.presets import PRESETS
from autorecall.stream import Stream

from .worlds import Say, read, refused

QUICK = ["--threads", "1", "--network.filters", "6"]


def data_of(counts: Sequence[int], shape: tuple[int, ...] = (3, 16, 16)) -> Dataset:
    """So many images of each class, bright in a row of their own."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(len(counts)), counts)
    images = rng.integers(0, 100, (len(labels), *shape), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[..., label % shape[-2], :] = 250
    return from_arrays(train=(images, labels), test=(images, labels))


def lay(root: Path, names: Sequence[str], each: int = 12, first: int = 0) -> None:
    data = data_of([each] * (first + len(names)))
    for number, (image, label) in enumerate(zip(data.train.inputs, data.train.labels, strict=True)):
        if label >= first:
            path = root / names[label - first] / f"{number:03}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.transpose(1, 2, 0)).save(path)


def test_a_folder_of_photos_is_learned_another_day_and_classified(say: Say, place: Path) -> None:
    lay(place / "photos", ["cat", "dog", "owl"])
    said = say("run", "--data", "photos", *QUICK)
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines()[0] == (
        "no preset given: taking cifar10/patches, the most accurate here that keeps no image "
        "(first_images 10, floor 0.62, ridge 0.62 for 30 images); `autorecall list` names the others"
    )
    (folder,) = place.glob("runs/folder/*/seed-0")
    assert read(folder / "result.json")["accuracy"] == 100.0
    again = say("run", "--data=photos", *QUICK)
    assert again.out.splitlines()[1].startswith("already finished")

    lay(place / "tuesday", ["cow"], first=3)
    assert say("learn", str(folder), "--data", "tuesday", "--test-data", "photos").code == 0
    model = load_model(folder.with_name("seed-0+tuesday"))
    found = model.predict([*sorted((place / "tuesday/cow").iterdir()), *sorted((place / "photos/dog").iterdir())])
    assert [top for ((top, _),) in found] == ["cow"] * 12 + ["dog"] * 12


def test_settings_that_are_given_are_taken(say: Say, place: Path) -> None:
    lay(place / "photos", ["cat", "dog", "owl"])
    given = ["--network.first-images", "5", "--learner.ridge", "0.5", "--stream.tasks", "1", "2", "--seed", "3"]
    assert say("run", "--data", "photos", "--dataset", "folder", *QUICK, *given).code == 0
    (folder,) = place.glob("runs/folder/*/seed-3")
    config = json.loads((folder / "config.json").read_text())
    assert (config["network"]["first_images"], config["learner"]["ridge"]) == (5, 0.5)
    assert config["stream"]["tasks"] == [1, 2]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--data nowhere", "the folder nowhere does not exist"),
        ("--data vectors.npz", "the inputs have shape (7,) and no preset is named"),
        ("--data known", "known has miniimagenet, and no preset is named; name one, such as cifar10/patches"),
        ("known", "there is no preset 'known'; to learn your own images, use --data known"),
        ("--data photos --stream.classes-per-task 5", "classes_per_task is 5 but the data have 2 classes"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(say: Say, place: Path, words: str, sentence: str) -> None:
    lay(place / "known" / "mini-imagenet", ["cat", "dog"], each=2)
    lay(place / "photos", ["cat", "dog"], each=2)
    np.savez(place / "vectors.npz", x=np.zeros((9, 7), np.float32), y=np.arange(9) % 3)
    said = say("run", *words.split())
    assert (said.code, sentence in said.err, said.err.count("\n")) == (2, True, 1)
    assert not (place / "runs").exists()


def test_known_data_with_a_preset_are_as_before(say: Say, place: Path) -> None:
    lay(place / "known" / "mini-imagenet", ["cat", "dog"], each=2)
    refused(say("run", "miniimagenet/naive", "--data", "known", "--stream.classes-per-task", "3"), "have 2 classes")


@pytest.mark.parametrize(
    ("shape", "preset"),
    [((1, 28, 28), "mnist/patches"), ((3, 32, 32), "cifar10/patches"), ((4, 9, 9), "cifar10/patches")],
)
def test_grey_images_are_taken_as_signs_and_others_as_photos(shape: tuple[int, ...], preset: str) -> None:
    assert best_preset(data_of([2, 2], shape)) == preset


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 8, 8), (3, 5, 5), (3, 8, 8), (4, 10, 40)])
@pytest.mark.parametrize("counts", [[1], [1, 1], [3, 20, 1], [40, 40, 2, 9, 5]])
def test_any_size_and_any_number_of_images_can_be_learned(shape: tuple[int, ...], counts: list[int]) -> None:
    data = data_of(counts, shape)
    usual = PRESETS[best_preset(data)].config
    assert isinstance(usual.network, PatchesConfig)
    few = replace(usual, network=replace(usual.network, filters=3))
    config = fitted(few, data)
    learner = config.learner.build(config.network.build(shape, len(counts)), seed=0)
    for task in Stream(data, config.stream):
        for x, y in task:
            learner.observe(x, y)
    seen = learner.statistics.counts.tolist()  # type: ignore[attr-defined]
    assert all(seen[label] >= 0.9 * count for label, count in enumerate(counts))


def test_filters_take_no_more_than_a_tenth_of_a_class() -> None:
    data = data_of([100, 100])
    assert images_for_filters(Stream(data, StreamConfig(2)), 100) == 20  # 10 of about 200 are lost
    assert images_for_filters(Stream(data, StreamConfig(2)), 15) == 15
    assert images_for_filters(Stream(data, StreamConfig(1)), 100) == 20
    many = data_of([1000, 1000])
    assert images_for_filters(Stream(many, StreamConfig(2)), 100) == 100
    assert images_for_filters(Stream(data_of([3, 1000]), StreamConfig(1)), 100) == 3


def test_the_fewer_images_the_less_their_covariance_is_trusted() -> None:
    ridges = []
    for count in (3, 300, 3000):
        config = fitted(PRESETS["cifar10/patches"].config, data_of([count] * 2, (3, 8, 8)))
        assert isinstance(config.learner, GaussiansConfig)
        ridges.append(config.learner.ridge)
    assert ridges == [1.0, 0.22, 0.022]  # a tenth of the number of features per image, up to 1
