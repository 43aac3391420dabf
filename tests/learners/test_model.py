"""What a learner leaves: a model that answers as it does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autorecall.networks import MLPConfig
from autorecall.runs.model import load_model, save_model

from .worlds import ALL, CLASSES, IMAGE, batch, learner

NETWORK = MLPConfig(hidden=(12,))


@pytest.mark.parametrize("method", ALL)
def test_a_model_answers_as_its_learner_does(method: str, tmp_path: Path) -> None:
    taught = learner(method, NETWORK.build(IMAGE, CLASSES))
    for number in range(5):
        x, y = batch(number)
        taught.observe(x.float(), y)
    names = [f"class {number}" for number in range(CLASSES)]
    save_model(taught, NETWORK, names, IMAGE, tmp_path / "model.safetensors")
    found, x = load_model(tmp_path), torch.rand(5, *IMAGE)
    assert not found.training
    torch.testing.assert_close(found(x), taught.predict(x), atol=1e-4, rtol=1e-4)
    assert found.classes == tuple(names)
    assert found.input_shape == IMAGE


@pytest.mark.parametrize("method", ALL)
def test_a_model_holds_no_image(method: str, tmp_path: Path) -> None:
    taught = learner(method, NETWORK.build(IMAGE, CLASSES))
    images = []
    for number in range(5):
        x, y = batch(number)
        images.append((255 * x).round() / 255)
        taught.observe(images[-1].float(), y)
    save_model(taught, NETWORK, ["a"] * CLASSES, IMAGE, tmp_path / "model.safetensors")
    written = (tmp_path / "model.safetensors").read_bytes()
    for image in torch.cat(images):
        for kind in (torch.float32, torch.float64, torch.float16):
            assert image.to(kind).numpy().tobytes()[:64] not in written
        assert (255 * image).round().to(torch.uint8).numpy().tobytes()[:32] not in written
