"""The model that a run leaves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from autorecall import run
from autorecall.data import Dataset, load
from autorecall.errors import AutorecallError, DataError, InputError
from autorecall.learners.base import Learner, methods
from autorecall.learners.er import ERConfig
from autorecall.learners.gen import GENConfig
from autorecall.networks import ConvVAEConfig, MLPConfig, NetworkConfig, ResNet18Config
from autorecall.runs.model import Model, load_model, save_model
from autorecall.storage.state_file import read_state, write_state

from .worlds import config

NAMES = ["cat", "dog", "<b>", "ünïcödé"]
SHAPE = (1, 8, 8)
SMALL = MLPConfig(hidden=(12,))


def taught(learner: Learner) -> Learner:
    """After two tasks of two classes."""
    generator = torch.Generator().manual_seed(0)
    for task in range(2):
        learner.boundary()
        for _ in range(3):
            labels = torch.arange(6) % 2 + 2 * task
            x = torch.rand(6, *SHAPE, generator=generator) * 0.5 + 0.1 * labels.view(-1, 1, 1, 1)
            learner.observe(x, labels)
    return learner


def left_by(learner: Learner, path: Path, network: NetworkConfig = SMALL) -> Model:
    save_model(learner, network, NAMES, SHAPE, path / "model.safetensors")
    return load_model(path)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    learner = taught(methods()["naive"]().build(SMALL.build(SHAPE, 4), 0))
    return left_by(learner, tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        ERConfig(input_range="symmetric"),
        GENConfig(input_range="symmetric", image_size=8, vae=ConvVAEConfig(latents=2), steps_per_batch=1),
    ],
    ids=["er", "gen"],
)
def test_images_enter_it_as_they_entered_the_learner(config: ERConfig | GENConfig, tmp_path: Path) -> None:
    network = ResNet18Config(channels=2)
    shape = (3, 8, 8)
    learner = config.for_stream((3, 3)).build(network.build(shape, 4), 0)
    learner.observe(torch.rand(6, 3, 8, 8), torch.arange(6) % 2)
    save_model(learner, network, NAMES, (3, 12, 12), tmp_path / "m")
    x = torch.rand(5, 3, 12 if isinstance(config, GENConfig) else 8, 12 if isinstance(config, GENConfig) else 8)
    torch.testing.assert_close(load_model(tmp_path / "m")(x), learner.predict(x), atol=1e-4, rtol=1e-4)


def test_a_finished_run_leaves_its_model(data: Dataset, tmp_path: Path) -> None:
    result = run("own/bars", config("naive"), data, tmp_path / "run")
    found = load_model(tmp_path / "run")
    assert found.classes == data.classes
    x = torch.from_numpy(data.test.inputs).float() / 255
    right = (found(x).argmax(1).numpy() == data.test.labels).mean()
    assert 100 * right == pytest.approx(result.accuracy, abs=1e-4)  # as many test images of each class


def test_predict_takes_paths_pictures_arrays_and_tensors_alike(tmp_path: Path) -> None:
    digits = load("mnist")
    learner = methods()["naive"]().build(SMALL.build((1, 28, 28), 10), 0)
    save_model(learner, SMALL, digits.classes, (1, 28, 28), tmp_path / "m")
    model, pixels = load_model(tmp_path / "m"), digits.test.inputs[0]
    path = tmp_path / "digit.png"
    Image.fromarray(pixels[0]).save(path)
    ways = [
        path,
        str(path),
        Image.fromarray(pixels[0]),
        pixels,
        pixels[0],
        torch.from_numpy(pixels),
        pixels.astype(np.float32) / 255,
    ]
    wanted = model.predict(path, top=3)
    for way in ways:
        assert model.predict(way, top=3) == wanted
    assert len(model.predict(ways)) == len(ways)
    probabilities = [share for _, share in model.predict(path, top=10)[0]]
    assert sum(probabilities) == pytest.approx(1, abs=1e-5)
    assert probabilities == sorted(probabilities, reverse=True)


def test_predict_leaves_the_mode_as_found(model: Model) -> None:
    model.train()
    model.predict(torch.rand(SHAPE))
    assert model.training


@pytest.mark.parametrize(
    ("image", "sentence"),
    [
        (torch.rand(3, 8, 8), "shape (3, 8, 8)"),
        (torch.zeros(1, 8, 8, dtype=torch.int64), "int64"),
        (torch.full(SHAPE, torch.nan), "NaN"),
        (np.zeros((9, 9), dtype=np.uint8), "shape (1, 9, 9)"),
    ],
)
def test_predict_refuses_other_inputs(model: Model, image: torch.Tensor, sentence: str) -> None:
    with pytest.raises(InputError) as refused:
        model.predict(image)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("top", [0, 5, -1])
def test_predict_refuses_more_classes_than_there_are(model: Model, top: int) -> None:
    with pytest.raises(InputError, match="expected 1 to 4"):
        model.predict(torch.rand(SHAPE), top)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="give the folder of a finished run"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"network": {}},
        {"model": {"classes": ["a"], "input_shape": [1, 8, 8], "network": {"kind": "import", "path": "os:system"}}},
        {"model": 3},
        {"labels": 3},
        {"format": 99},
    ],
)
def test_a_forged_model_is_refused(model: Model, tmp_path: Path, change: dict[str, object]) -> None:
    state = dict(read_state(tmp_path / "model.safetensors"))
    write_state(tmp_path / "model.safetensors", state | change)
    with pytest.raises(AutorecallError):
        load_model(tmp_path)


def test_a_damaged_model_is_refused(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(DataError):
        load_model(path)
