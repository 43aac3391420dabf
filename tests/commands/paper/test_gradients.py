"""The gradient study: its arithmetic against a slow way to do it, and the whole of it on a small run."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from autorecall import run
from autorecall.commands.paper import STUDIES
from autorecall.commands.paper.gradients import PUBLISHED, correlations, gradients, layers_of, normalised_product
from autorecall.commands.paper.kept import Kept
from autorecall.commands.paper.study import Place
from autorecall.data import load
from autorecall.errors import DataError
from autorecall.presets import PRESETS
from autorecall.runs.names import run_folder
from autorecall.storage.state_file import write_state

from .conftest import FRACTION


def test_a_gradient_is_the_slope_of_the_loss() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    x, target = torch.rand(1, 4).double(), torch.tensor([[0.3, 0.7]]).double()

    def loss() -> float:
        p = network(x).exp()
        return float(-(target * (p / p.sum()).log()).sum())

    for parameter, found in zip(network.parameters(), gradients(network, x, target), strict=True):
        for place in np.ndindex(*parameter.shape):
            with torch.no_grad():
                parameter[place] += 1e-6
                above = loss()
                parameter[place] -= 2e-6
                slope = (above - loss()) / 2e-6
                parameter[place] += 1e-6
            assert float(found[place]) == pytest.approx(slope, abs=1e-8)


def test_a_normalised_product_is_the_cosine() -> None:
    a, b = torch.rand(3, 4), torch.rand(3, 4) - 0.5
    by_hand = float((a * b).sum()) / math.sqrt(float((a * a).sum()) * float((b * b).sum()))
    assert normalised_product(a, b) == pytest.approx(by_hand, abs=1e-6)
    assert normalised_product(a, -2 * a) == pytest.approx(-1, abs=1e-6)
    assert normalised_product(a, torch.zeros(3, 4)) == 0
    assert normalised_product(1e-20 * a, a) == pytest.approx(1, abs=1e-5)


def test_layers_are_the_papers() -> None:
    resnet = layers_of(PRESETS["cifar10/arm"].config.network.build((3, 32, 32), 10))
    assert {name: len(tensors) for name, tensors in resnet.items()} == {
        **{"Conv 1": 3, "Conv 2": 12, "Conv 3": 15, "Conv 4": 15, "Conv 5": 15, "FC": 2, "All": 62},
    }
    mlp = layers_of(PRESETS["mnist/arm"].config.network.build((1, 28, 28), 10))
    assert mlp == {"FC 1": [0, 1], "FC 2": [2, 3], "FC 3": [4, 5], "All": [0, 1, 2, 3, 4, 5]}
    assert list(PUBLISHED["cifar10"]) == list(resnet)
    assert list(PUBLISHED["mnist"]) == list(mlp)


@pytest.mark.parametrize("dataset", ["mnist", "cifar10", "miniimagenet"])
def test_all_in_the_paper_is_the_mean_over_tensors(dataset: str) -> None:
    shape, classes = {"mnist": ((1, 28, 28), 10), "cifar10": ((3, 32, 32), 10), "miniimagenet": ((3, 84, 84), 100)}[
        dataset
    ]
    counts = {k: len(v) for k, v in layers_of(PRESETS[f"{dataset}/arm"].config.network.build(shape, classes)).items()}
    all_of_them = counts.pop("All")
    for column in range(4):
        means = {layer: float(cells[column].split(" ")[0]) for layer, cells in PUBLISHED[dataset].items()}
        weighted = sum(means[layer] * count for layer, count in counts.items()) / all_of_them
        assert means["All"] == pytest.approx(weighted, abs=0.0011)


def test_recall_leaves_the_learner_as_it_was_and_starts_from_real_images(end: Kept) -> None:
    before = {name: value.clone() for name, value in end.learner.network.state_dict().items()}
    teacher = end.learner.teacher.network
    assert teacher is not None
    old = [p.clone() for p in teacher.parameters()]
    found = list(end.recall(15, end.stream.tasks))
    assert [len(samples.images) for samples in found] == [10, 5]
    now = end.learner.teacher.network
    assert now is not None
    assert all(torch.equal(a, b) for a, b in zip(old, now.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(old, end.learner.network.parameters(), strict=True))
    assert all(torch.equal(value, before[name]) for name, value in end.learner.network.state_dict().items())
    for samples in found:
        assert torch.allclose(samples.targets.sum(1), torch.ones(len(samples.targets)))
        for image, real, label in zip(samples.images, samples.real, samples.labels, strict=True):
            assert not torch.equal(image, real)
            assert _is_training_image(end, real, int(label))


def test_correlations_with_the_target_class_are_highest_in_the_last_layer(end: Kept) -> None:
    found = correlations(end, 60)
    assert found.images == 60
    hard = {(v.layer, v.with_class): v.mean for v in found.values if v.kind == "hard"}
    assert hard["FC 3", "target"] > hard["FC 2", "target"] > 0
    assert hard["FC 3", "target"] > hard["FC 3", "originator"]
    for layer in ("FC 1", "FC 2", "FC 3", "All"):
        assert -1 <= hard[layer, "originator"] <= 1
    assert hard["All", "target"] == pytest.approx(np.mean([hard[f"FC {n}", "target"] for n in (1, 2, 3)]), abs=1e-9)


def test_the_study_keeps_its_numbers_and_does_not_measure_again(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autorecall.commands.paper.gradients.IMAGES", 20)
    study, place = STUDIES["gradients"], Place(results)
    everything = ["mnist/arm", "cifar10/arm", "miniimagenet/arm"]
    assert [row.preset for row in study.wanted(Place(results / "nothing"), 1, FRACTION)] == everything
    assert [row.preset for row in study.wanted(place, 1, FRACTION)] == everything[1:]  # the learner is there
    first = study.write(place, 1, FRACTION)
    assert {path.suffix for path in first} == {".json", ".md", ".tex", ".csv", ".png", ".pdf"}
    assert [row.preset for row in study.wanted(place, 1, FRACTION)] == ["cifar10/arm", "miniimagenet/arm"]
    monkeypatch.setattr("autorecall.commands.paper.gradients.correlations", None)
    assert study.write(place, 1, FRACTION) == first


def test_recalled_images_are_drawn_and_kept(results: Path) -> None:
    written = STUDIES["recalled"].write(Place(results), 1, FRACTION)
    assert {path.suffix for path in written} == {".safetensors", ".png", ".pdf"}


def test_any_seed_that_kept_its_learner_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autorecall.commands.paper.gradients.IMAGES", 10)
    config = replace(PRESETS["mnist/arm"].config, fraction=FRACTION, curve_points=0, seed=1)
    run("mnist/arm", config, load("mnist"), run_folder(tmp_path, "mnist/arm", config), keep_learner=True)
    assert STUDIES["recalled"].write(Place(tmp_path), 1, FRACTION) == []
    assert STUDIES["recalled"].write(Place(tmp_path), 2, FRACTION)
    STUDIES["gradients"].write(Place(tmp_path), 2, FRACTION)
    table = tmp_path / "paper" / f"gradients-mnist+fraction={FRACTION}.md"
    assert "The network is that of seed 1.\n" in table.read_text()


def test_a_network_that_learned_from_a_part_of_the_images_is_named(end: Kept, tmp_path: Path) -> None:
    found = correlations(replace(end, share=1 / 6), 2)
    (tmp_path / "gradients-mnist.json").write_text(json.dumps(asdict(found)))
    STUDIES["gradients"].write(Place(tmp_path, into=tmp_path), 1, 1.0)
    said = "The network is that of seed 0, which learned from 17 % of its images."
    assert said in (tmp_path / "gradients-mnist.md").read_text()


@pytest.mark.parametrize("change", ['"values": []', '"layer": "FC 9", "kind"', '"images": null'])
def test_damaged_numbers_are_named(results: Path, tmp_path: Path, change: str) -> None:
    numbers = {
        "images": 1,
        "values": [
            {"layer": "All", "kind": k, "with_class": c, "mean": 0.1, "deviation": 0.1}
            for k in ("hard", "soft")
            for c in ("originator", "target")
        ],
    }
    text = json.dumps(numbers)
    name = change.split(":")[0]
    start = text.index(name)
    damaged = {'"values"': '{"images": 1, "values": []}'}.get(name) or text[:start] + change + text[
        text.index(",", start) :
    ]
    (tmp_path / f"gradients-mnist+fraction={FRACTION}.json").write_text(damaged)
    with pytest.raises(DataError, match="gradients-mnist"):
        STUDIES["gradients"].write(Place(results, into=tmp_path), 1, FRACTION)


def test_damaged_images_are_named(results: Path, tmp_path: Path) -> None:
    images = tmp_path / f"recalled-mnist+fraction={FRACTION}.safetensors"
    pixels = torch.zeros(2, 1, 28, 28, dtype=torch.uint8)
    good: dict[str, object] = {
        "real": pixels,
        "recalled": pixels.clone(),
        "labels": torch.tensor([0, 9]),
        "targets": torch.tensor([1, 2]),
    }
    write_state(images, good)
    assert STUDIES["recalled"].write(Place(results, into=tmp_path), 1, FRACTION)
    changes: tuple[dict[str, object], ...] = (
        {"labels": torch.tensor([0, 99])},
        {"labels": torch.tensor([0])},
        {"real": pixels[:0]},
        {"real": 3},
    )
    for change in changes:
        write_state(images, good | change)
        with pytest.raises(DataError, match="recalled-mnist"):
            STUDIES["recalled"].write(Place(results, into=tmp_path), 1, FRACTION)


def _is_training_image(end: Kept, image: Tensor, label: int) -> bool:
    split = end.dataset.train
    own = split.inputs[split.labels == label]
    return bool((own == (255 * image).round().to(torch.uint8).numpy()).all(axis=(1, 2, 3)).any())
