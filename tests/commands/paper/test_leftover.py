"""What is left of real images in recalled ones: the measures against naive ones, and the study on a small run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from autorecall.commands.paper import STUDIES
from autorecall.commands.paper.kept import Kept
from autorecall.commands.paper.leftover import KINDS, leftover, likeness
from autorecall.commands.paper.likeness import standardised, structural_similarity
from autorecall.commands.paper.study import Place
from autorecall.errors import DataError

from .conftest import FRACTION

STUDY = STUDIES["leftover"]


def naive_similarity(a: np.ndarray, b: np.ndarray) -> float:
    """The formula of Wang et al., window by window and pixel by pixel."""
    window = np.array([[math.exp(-(i * i + j * j) / (2 * 1.5**2)) for j in range(-5, 6)] for i in range(-5, 6)])
    window /= window.sum()
    values = []
    for channel_a, channel_b in zip(a, b, strict=True):
        for top in range(a.shape[1] - 10):
            for left in range(a.shape[2] - 10):
                x, y = (c[top : top + 11, left : left + 11] for c in (channel_a, channel_b))
                mx, my = float((window * x).sum()), float((window * y).sum())
                sx, sy = float((window * (x - mx) ** 2).sum()), float((window * (y - my) ** 2).sum())
                sxy = float((window * (x - mx) * (y - my)).sum())
                light = (2 * mx * my + 0.01**2) / (mx**2 + my**2 + 0.01**2)
                values.append(light * (2 * sxy + 0.03**2) / (sx + sy + 0.03**2))
    return float(np.mean(values))


@pytest.mark.parametrize("shape", [(1, 13, 14), (3, 12, 11)])
def test_structural_similarity_is_the_published_formula(shape: tuple[int, ...]) -> None:
    a, b = np.random.default_rng(0).random((2, 2, *shape))
    b[1] = 0.7 * a[1] + 0.1
    found = structural_similarity(torch.from_numpy(a), torch.from_numpy(b))
    assert found.tolist() == pytest.approx([naive_similarity(*pair) for pair in zip(a, b, strict=True)], abs=1e-12)
    assert structural_similarity(torch.from_numpy(a), torch.from_numpy(a)).tolist() == pytest.approx([1, 1])


def test_products_of_standardised_images_are_correlations() -> None:
    a, b = np.random.default_rng(1).random((2, 4, 1, 5, 6))
    found = standardised(torch.from_numpy(a)) @ standardised(torch.from_numpy(b)).T
    by_numpy = np.corrcoef(a.reshape(4, -1), b.reshape(4, -1))[:4, 4:]
    np.testing.assert_allclose(found.numpy(), by_numpy, atol=1e-12)
    assert not standardised(torch.ones(1, 3)).any()


def test_its_own_image_is_told_from_all_others() -> None:
    real = torch.rand(6, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    images = torch.stack([real[2], real[3], 1 - real[4]])
    own = [np.array([2]), np.array([0, 1]), np.array([4])]
    found = likeness("any", images, own, real)
    pairs = np.corrcoef(torch.cat([images, real]).flatten(1).numpy())[:3, 3:]
    mine = [pairs[0, 2], max(pairs[1, :2]), pairs[2, 4]]
    others = [max(np.delete(line, numbers)) for line, numbers in zip(pairs, own, strict=True)]
    assert found.correlation == pytest.approx(np.mean(mine), abs=1e-6)
    assert found.nearest == pytest.approx(np.mean(others), abs=1e-6)
    assert found.nearest_deviation == pytest.approx(np.std(others, ddof=1), abs=1e-6)
    assert found.own_nearest == pytest.approx(100 / 3)  # the first; the second has a twin, the third a negative
    alone = likeness("any", images[[0, 0]], [np.array([0])] * 2, torch.stack([real[2], 1 - real[2]]))
    assert alone.nearest == pytest.approx(-1)


def test_recalled_digits_are_less_like_their_origin_than_nothing_changed_at_all(end: Kept) -> None:
    found = leftover(end, 30)
    assert (found.images, found.seen) == (30, 250)
    kinds = {kind.kind: kind for kind in found.kinds}
    assert tuple(kinds) == KINDS
    recalled, blurred, alike, from_noise, noise = (kinds[kind] for kind in KINDS)
    assert recalled.own_nearest > alike.own_nearest
    assert alike.correlation < recalled.correlation < 1
    assert blurred.own_nearest > 0
    for kind in (from_noise, noise):
        assert abs(kind.correlation) < 0.5
    assert noise.similarity < 0.1


def test_recall_from_noise_starts_from_no_image(end: Kept) -> None:
    samples = next(end.starting_from("noise").recall(10, end.stream.tasks[-1:]))
    assert end.learner.config.initial == "real"
    others = next(end.recall(10, end.stream.tasks[-1:]))
    assert sorted(samples.batch) == sorted(others.batch)
    assert set(others.origins.tolist()) <= set(others.batch.tolist())
    products = (standardised(samples.images) * standardised(others.real)).sum(1)
    assert float(products.abs().max()) < 0.6
    assert float((standardised(others.images) * standardised(others.real)).sum(1).mean()) > float(products.mean())


def test_the_study_keeps_its_numbers(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autorecall.commands.paper.leftover.IMAGES", 10)
    place = Place(results, into=tmp_path)
    nothing = Place(results / "nothing")
    assert [row.preset for row in STUDY.wanted(nothing, 5, FRACTION)] == ["mnist/arm", "cifar10/arm"]
    first = STUDY.write(place, 5, FRACTION)
    assert [path.suffix for path in first] == [".json", ".md", ".tex", ".csv"]
    assert [row.preset for row in STUDY.wanted(place, 5, FRACTION)] == ["cifar10/arm"]
    monkeypatch.setattr("autorecall.commands.paper.leftover.leftover", None)
    before = [path.read_bytes() for path in first]
    assert STUDY.write(place, 5, FRACTION) == first
    assert [path.read_bytes() for path in first] == before
    numbers = json.loads(first[0].read_text())
    for damaged in (numbers | {"images": None}, numbers | {"kinds": numbers["kinds"][1:]}):
        first[0].write_text(json.dumps(damaged))
        with pytest.raises(DataError, match="leftover-mnist"):
            STUDY.write(place, 5, FRACTION)


def test_no_more_than_a_tenth_of_cifar10_is_run() -> None:
    assert [row.config.fraction for row in STUDY.rows(5, 1.0)] == [1.0, 0.1]
    assert [row.config.fraction for row in STUDY.rows(5, 0.02)] == [0.02, 0.02]
