"""The descriptor against sums written out, and what a mirror does to it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from autorecall.errors import ConfigError
from autorecall.networks import Descriptor, DescriptorConfig
from autorecall.networks.descriptor import Frequencies
from autorecall.networks.fixed import cosines


def images(count: int = 4, shape: tuple[int, ...] = (3, 16, 16)) -> Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def naive_cosine_transform(image: np.ndarray, count: int) -> np.ndarray:
    height, width = image.shape
    found = np.zeros((count, count))
    for k in range(count):
        for m in range(count):
            for i in range(height):
                for j in range(width):
                    wave = math.cos(math.pi * (i + 0.5) * k / height) * math.cos(math.pi * (j + 0.5) * m / width)
                    found[k, m] += image[i, j] * wave
    scale = [[math.sqrt((2 - (k == 0)) * (2 - (m == 0)) / height / width) for m in range(count)] for k in range(count)]
    scaled: np.ndarray = found * np.array(scale)
    return scaled


def naive_edges(image: np.ndarray, orientations: int, size: int) -> np.ndarray:
    """Maps of edges by angles; the image is a multiple of the map."""
    grey = np.pad(image.mean(0), 1, mode="edge")
    height, width = image.shape[1:]
    maps = np.zeros((orientations, size, size))
    for i in range(height):
        for j in range(width):
            across, down = grey[i + 1, j + 2] - grey[i + 1, j], grey[i + 2, j + 1] - grey[i, j + 1]
            angle = math.atan2(down, across)
            for number in range(orientations):
                energy = math.hypot(across, down) * max(0, math.cos(2 * (angle - number * math.pi / orientations))) ** 2
                maps[number, i * size // height, j * size // width] += energy * size * size / height / width
    return np.sqrt(maps + 1e-3)


def test_it_is_the_cosine_transform_of_pixels_and_edges() -> None:
    config = DescriptorConfig(pixels=3, edges=2, orientations=5, map_size=4)
    x = images(2)
    found = Frequencies((3, 16, 16), config).double()(x)
    for row, image in zip(found, x.numpy(), strict=True):
        pixels = [naive_cosine_transform(channel, 3) for channel in image]
        edges = [naive_cosine_transform(one, 2) for one in naive_edges(image, 5, 4)]
        expected = np.concatenate([part.ravel() for part in (*pixels, *edges)])
        np.testing.assert_allclose(row.numpy(), expected, atol=1e-5)


def test_rows_of_the_transform_are_orthonormal() -> None:
    rows = cosines(9, 9)
    torch.testing.assert_close(rows @ rows.T, torch.eye(9), atol=1e-5, rtol=0)


@pytest.mark.parametrize("orientations", [1, 2, 5, 6])
@pytest.mark.parametrize("size", [(16, 16), (17, 19)])
def test_with_a_mirror_it_is_the_mean_of_both_without_what_is_0_or_there_twice(
    orientations: int, size: tuple[int, int]
) -> None:
    shape = (3, *size)
    plain = Frequencies(shape, DescriptorConfig(4, 3, orientations)).double()
    mirrored = Frequencies(shape, DescriptorConfig(4, 3, orientations, mirror=True)).double()
    x = images(300, shape)
    found, mean = mirrored(x), (plain(x) + plain(x.flip(-1))) / 2
    torch.testing.assert_close(mirrored(x.flip(-1)), found, atol=1e-6, rtol=0)
    # Each feature is one of the means; no two are alike, and each varies.
    nearest = torch.cdist(found.T, mean.T).min(1)
    assert float(nearest.values.max()) < 1e-5
    assert float(found.std(0).min()) > 1e-4
    assert int(torch.linalg.matrix_rank(found - found.mean(0), rtol=1e-9)) == found.shape[1]
    # And none is missing: all means follow from them.
    assert int(torch.linalg.matrix_rank(mean - mean.mean(0), rtol=1e-6)) == found.shape[1]


@pytest.mark.parametrize(
    ("config", "shape", "count"),
    [
        (DescriptorConfig(pixels=6, map_size=7), (1, 28, 28), 132),
        (DescriptorConfig(), (3, 32, 32), 144),
        (DescriptorConfig(6, 6, mirror=True), (3, 32, 32), 162),
        (DescriptorConfig(edges=0), (2, 5, 9), 32),
        (DescriptorConfig(pixels=0), (3, 84, 84), 96),
    ],
)
def test_its_size_follows_from_its_settings(config: DescriptorConfig, shape: tuple[int, ...], count: int) -> None:
    network = config.build(shape, 7)
    assert isinstance(network, Descriptor)
    assert network.features(torch.rand(2, *shape)).shape == (2, count)
    assert network(torch.rand(2, *shape)).shape == (2, 7)
    assert network.kept_numbers() == 2 * count


def test_the_first_images_set_mean_and_scale() -> None:
    network = DescriptorConfig(first_images=30, hidden=(5,)).build((3, 16, 16), 4).double()
    assert isinstance(network, Descriptor)
    x = images(60)
    for start in range(0, 60, 10):
        assert network.settled is (start >= 30)
        network.show(x[start : start + 10])
    raw = network.frequencies(x)
    expected = (raw - raw[:30].mean(0)) / raw[:30].std(0, correction=0)
    torch.testing.assert_close(network.features(x), expected, rtol=1e-5, atol=1e-5)


def test_a_feature_that_did_not_vary_at_first_does_not_explode() -> None:
    network = DescriptorConfig(first_images=10).build((3, 16, 16), 4)
    assert isinstance(network, Descriptor)
    flat = torch.linspace(0, 1, 10)[:, None, None, None].expand(10, 3, 16, 16)
    network.show(flat)
    assert float(network.features(torch.rand(5, 3, 16, 16)).abs().max()) < 1e5
    network = DescriptorConfig(first_images=1).build((3, 16, 16), 4)
    network.show(flat[:1])  # type: ignore[operator]
    assert bool(network(torch.rand(5, 3, 16, 16)).isfinite().all())


def test_gradients_are_finite_on_flat_images() -> None:
    network = DescriptorConfig().build((3, 16, 16), 4)
    x = torch.full((2, 3, 16, 16), 0.5, requires_grad=True)
    network(x).sum().backward()
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: DescriptorConfig(pixels=-1), "network.pixels is -1; expected 0 to 1,000"),
        (lambda: DescriptorConfig(0, 0), "both 0"),
        (lambda: DescriptorConfig(edges=9), "network.edges is 9 but maps have 8 rows"),
        (lambda: DescriptorConfig(orientations=0), "network.orientations is 0"),
        (lambda: DescriptorConfig(hidden=(0,)), "network.hidden is (0,)"),
        (lambda: DescriptorConfig().build((784,), 10), "(784,)"),
        (
            lambda: DescriptorConfig().build((3, 7, 32), 10),
            "at least 8 × 8 with these settings but the data have 7 × 32",
        ),
    ],
)
def test_impossible_ones_are_refused_by_name(make: Callable[[], object], part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert part in str(caught.value)
