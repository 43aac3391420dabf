"""Patch filters against loops over patches; how the first images set them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from autorecall.errors import ConfigError
from autorecall.networks import Patches, PatchesConfig
from autorecall.networks.patches import BLOCK, FORGET
from autorecall.torch_state import limited_threads

SHAPE = (2, 9, 8)


def images(count: int, seed: int = 0) -> Tensor:
    """Smooth ones, so that their patches are correlated."""
    x = torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return F.avg_pool2d(x, 3, 1, 1)


def built(**settings: object) -> Patches:
    torch.manual_seed(0)
    usual: dict[str, object] = {"filters": 5, "size": 3, "first_images": 8, "grid": 2}
    network = PatchesConfig(**(usual | settings)).build(SHAPE, 4).double()  # type: ignore[arg-type]
    assert isinstance(network, Patches)
    return network


def patches_of(image: Tensor, size: int, contrast: float) -> list[Tensor]:
    """Row by row, each less its mean and over its deviation."""
    found = []
    for i in range(image.shape[1] - size + 1):
        for j in range(image.shape[2] - size + 1):
            patch = image[:, i : i + size, j : j + size].flatten()
            found.append((patch - patch.mean()) / (patch.var() + contrast).sqrt())
    return found


def expected_features(network: Patches, image: Tensor) -> Tensor:
    config, (filters, offsets) = network.config, network.filters()
    mirrors = [image, image.flip(-1)] if config.mirror else [image]
    means = []
    for seen in mirrors:
        rows, columns = (side - config.size + 1 for side in seen.shape[1:])
        responses = torch.stack([filters @ p + offsets for p in patches_of(seen, config.size, config.contrast)], 1)
        responses = responses.reshape(-1, rows, columns)
        up, down = (responses - config.threshold).relu(), (-responses - config.threshold).relu()
        means.append(torch.stack([F.adaptive_avg_pool2d(part, config.cells) for part in (up, down)]))
    return (torch.stack(means).mean(0) + 1e-3).sqrt().flatten()


@pytest.mark.usefixtures("installation")
@pytest.mark.parametrize(
    ("size", "grid", "columns", "mirror"),
    [
        (3, 2, None, True),
        (4, 2, None, True),
        (3, 3, None, False),
        (1, 1, None, True),
        (3, 2, 1, True),
        (4, 1, 3, False),
    ],
)
def test_features_are_those_of_a_loop_over_patches(size: int, grid: int, columns: int | None, mirror: bool) -> None:
    network = built(size=size, grid=grid, columns=columns, mirror=mirror, threshold=0.3)
    network.show(images(8))
    x = images(3, seed=1)
    found = network.features(x)
    for row, image in zip(found, x, strict=True):
        torch.testing.assert_close(row, expected_features(network, image), atol=1e-6, rtol=1e-6)
    if mirror:
        torch.testing.assert_close(network.features(x.flip(-1)), found, atol=1e-6, rtol=1e-6)


@pytest.mark.usefixtures("installation")
def test_there_may_be_many_filters() -> None:
    network, x = built(filters=2 * BLOCK + 3), images(1)
    torch.testing.assert_close(network.features(x)[0], expected_features(network, x[0]), atol=1e-6, rtol=1e-6)


def test_frequencies_come_first() -> None:
    torch.manual_seed(0)
    network = PatchesConfig(filters=5, frequencies=6, first_images=2).build((3, 16, 16), 4)
    assert isinstance(network, Patches)
    assert network.frequencies is not None
    x = torch.rand(3, 3, 16, 16)
    assert network.features(x).shape == (3, 162 + 40)
    assert torch.equal(network.features(x)[:, :162], network.frequencies(x))


@pytest.mark.usefixtures("installation")
@torch.no_grad()
def test_features_of_an_image_depend_neither_on_its_batch_nor_on_threads() -> None:
    torch.manual_seed(0)
    network = PatchesConfig(filters=9, frequencies=6, first_images=8).build((3, 16, 17), 4)
    assert isinstance(network, Patches)
    x = torch.rand(45, 3, 16, 17)
    network.show(x[:8])
    with limited_threads(1):
        alone = torch.cat([network.features(image[None]) for image in x])
    for threads in (1, 2, 3):
        with limited_threads(threads):
            assert torch.equal(network.features(x), alone)
            assert torch.equal(network.features(x.contiguous(memory_format=torch.channels_last)), alone)


@pytest.mark.filterwarnings("ignore")
@torch.no_grad()
def test_a_trace_is_of_any_number_of_images() -> None:
    network = built()
    network.show(images(8))
    with limited_threads(2):
        traced = torch.jit.trace(network, images(2))  # type: ignore[no-untyped-call]
        torch.testing.assert_close(traced(images(5)), network(images(5)), atol=1e-6, rtol=1e-6)


@pytest.mark.usefixtures("installation")
@pytest.mark.parametrize("shape", [(3, 9, 8), (2, 9, 9), (2, 8, 8), (9, 8), (2, 2, 2)])
def test_images_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises((RuntimeError, IndexError)):
        built().features(torch.rand(2, *shape, dtype=torch.float64))


@pytest.mark.usefixtures("installation")
@pytest.mark.parametrize("mirror", [True, False])
def test_what_is_no_number_is_not_hidden(mirror: bool) -> None:
    network, x = built(mirror=mirror), images(3)
    network.show(images(8))
    x[1, 0, 4, 4] = math.nan
    assert network.features(x).isfinite().all(1).tolist() == [True, False, True]


@pytest.mark.parametrize("sizes", [[8], [1] * 8, [3, 3, 2], [5, 3]])
def test_the_first_half_of_the_images_gives_mean_and_whitening(sizes: list[int]) -> None:
    network, x = built(), images(8)
    for part in torch.split(x, sizes):
        network.show(part)
    rows = torch.stack([patch for image in x[:4] for patch in patches_of(image, 3, network.config.contrast)])
    covariance = rows.T.cov(correction=0) + 0.1 * torch.eye(18, dtype=torch.float64)
    torch.testing.assert_close(network.get_buffer("patch_mean"), rows.mean(0), atol=1e-9, rtol=0)
    whitening = network.get_buffer("whitening")
    torch.testing.assert_close(whitening @ covariance @ whitening, torch.eye(18, dtype=torch.float64))
    torch.testing.assert_close(whitening, whitening.T)


def test_the_second_half_moves_filters_to_centroids() -> None:
    network, x = built(), images(8)
    before = network.get_buffer("centroids").clone()
    network.show(x[:4])
    assert torch.equal(network.get_buffer("centroids"), before)
    network.show(x[4:8])
    mean, whitening = network.get_buffer("patch_mean"), network.get_buffer("whitening")
    expected = FORGET * before
    for image in x[4:8]:
        for patch in patches_of(image, 3, network.config.contrast):
            white = F.normalize(whitening @ (patch - mean), dim=0)
            responses = [float(white @ F.normalize(centroid, dim=0)) for centroid in before]
            best = max(range(5), key=lambda number: abs(responses[number]))
            expected[best] += responses[best] * white
    torch.testing.assert_close(network.get_buffer("centroids"), expected)


def test_later_images_change_nothing_and_no_patch_is_kept() -> None:
    network, x = built(), images(8)
    network.show(x)
    assert network.settled
    before = copy.deepcopy(network.state_dict())
    network.show(images(5, seed=3))
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    filters = F.normalize(network.get_buffer("centroids"), dim=1)
    mean, whitening = network.get_buffer("patch_mean"), network.get_buffer("whitening")
    for image in x:
        for patch in patches_of(image, 3, network.config.contrast):
            white = F.normalize(whitening @ (patch - mean), dim=0)
            assert float((filters @ white).abs().max()) < 1 - 1e-6


def test_numbers_kept_are_filters_whitening_and_a_mean() -> None:
    assert built().kept_numbers() == 5 * 18 + 18 * 18 + 18
    assert PatchesConfig(149, frequencies=6).build((3, 32, 32), 10).kept_numbers() == 149 * 108 + 108 * 108 + 108  # type: ignore[operator]


def test_a_state_is_loaded_at_any_time() -> None:
    for shown in (0, 2, 6, 8, 11):
        first, second = built(), built(threshold=0.5)
        second.get_buffer("centroids").normal_()
        first.show(images(shown)) if shown else None
        second.load_state_dict(first.state_dict())
        for network in (first, second):
            network.show(images(4, seed=5))
        assert torch.equal(second.features(images(3)), first.features(images(3)))


def test_gradients_reach_the_image() -> None:
    network = built()
    network.show(images(8))
    x = images(2).requires_grad_()
    network(x).square().sum().backward()
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())
    assert bool(x.grad.any())


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: PatchesConfig(filters=0), "network.filters is 0"),
        (lambda: PatchesConfig(columns=0), "network.columns is 0"),
        (lambda: PatchesConfig(size=101), "network.size is 101"),
        (lambda: PatchesConfig(threshold=-0.1), "network.threshold is -0.1"),
        (lambda: PatchesConfig(contrast=0.0), "network.contrast is 0.0"),
        (lambda: PatchesConfig(frequencies=-1), "expected 0 to 1,000"),
        (lambda: PatchesConfig(first_images=0), "network.first_images is 0"),
        (lambda: PatchesConfig().build((784,), 10), "(784,)"),
        (lambda: PatchesConfig().build((3, 6, 32), 10), "at least 7 × 7"),
    ],
)
def test_impossible_ones_are_refused_by_name(make: Callable[[], object], part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert part in str(caught.value)
