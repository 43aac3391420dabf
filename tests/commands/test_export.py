"""`autorecall export`: what onnxruntime makes of the file. `make test-onnx` installs what this needs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from autorecall import load_model

from .worlds import Say, refused

ROWS = ["mnist/arm", "mnist/slda", "mnist/gen", "mnist/er-50"]


@pytest.mark.parametrize("name", ROWS)
def test_the_file_gives_the_same_logits(say: Say, place: Path, name: str) -> None:
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    quick = ["--learner.steps-per-batch", "1", "--learner.groups", "1"] if name == "mnist/gen" else []
    assert say("run", name, "--curve-points", "0", "--fraction", "0.2", "--out", "out", *quick).code == 0
    (run,) = (place / "out").glob("mnist/*/seed-0")
    said = say("export", str(run), "--onnx", "model.onnx")
    assert (said.code, said.err) == (0, "")
    assert "onnxruntime agrees to " in said.out
    session, model = onnxruntime.InferenceSession(str(place / "model.onnx")), load_model(run)
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == list(model.classes)
    for count in (1, 7):
        images = torch.rand(count, 1, 28, 28)
        (logits,) = session.run(None, {"images": images.numpy()})
        with torch.no_grad():
            expected = model(images).numpy()
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4 * max(1, np.abs(expected).max()))
        assert (logits.argmax(1) == expected.argmax(1)).all()


@pytest.mark.parametrize("name", ["mnist/gaussians", "mnist/patches"])
def test_fixed_features_take_one_image_at_a_time(say: Say, place: Path, name: str) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    quick = ["--network.filters", "5"] if name == "mnist/patches" else []
    assert say("run", name, "--curve-points", "0", "--fraction", "0.6", "--out", "out", *quick).code == 0
    (run,) = (place / "out").glob("mnist/*/seed-0")
    said = say("export", str(run), "--onnx", "model.onnx")
    assert (said.code, said.err) == (0, "")
    assert "images (one × 1 × 28 × 28)" in said.out
    assert "onnxruntime agrees to " in said.out


def test_the_nearest_mean_is_exported_as_well(say: Say, place: Path) -> None:
    """Of iCaRL, and after a network with convolutions."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    words = ["--dataset", "mnist", "--network.channels", "2", "--curve-points", "0", "--fraction", "0.2"]
    assert say("run", "cifar10/icarl", *words, "--out", "out").code == 0
    (run,) = (place / "out").glob("mnist/*/seed-0")
    assert "onnxruntime agrees to " in say("export", str(run), "--onnx", "model.onnx").out


def test_bad_use_gets_one_sentence(say: Say, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_: str) -> None:
        return None

    with monkeypatch.context() as patched:
        patched.setattr("autorecall.commands.export.find_spec", nothing)
        refused(say("export", "nowhere", "--onnx", "model.onnx"), "the package onnx is not installed; use pip install")
    monkeypatch.setattr("autorecall.commands.export.find_spec", lambda _: True)
    refused(say("export", "nowhere", "--onnx", "model.onnx"), "there is no nowhere; give the folder of a finished run")
    (place / "taken").mkdir()
    refused(say("export", "nowhere", "--onnx", "taken"), "taken is a folder; give the name of a file to write")
    assert [path.name for path in place.iterdir()] == ["taken"]
