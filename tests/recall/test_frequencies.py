"""Low frequencies against the sums that define a cosine transform, and scipy's."""

from __future__ import annotations

import math

import pytest
import scipy.fft
import torch
from torch import Tensor

from autorecall.recall.frequencies import from_low_frequencies, low_frequencies


def images(height: int = 7, width: int = 5) -> Tensor:
    return torch.rand(3, 2, height, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def coefficient(image: Tensor, row: int, column: int) -> float:
    """One coefficient of the orthonormal transform of a channel, term by term."""
    height, width = image.shape
    scale = math.sqrt((1 if row == 0 else 2) / height) * math.sqrt((1 if column == 0 else 2) / width)
    return scale * sum(
        float(image[i, j])
        * math.cos(math.pi * row * (2 * i + 1) / (2 * height))
        * math.cos(math.pi * column * (2 * j + 1) / (2 * width))
        for i in range(height)
        for j in range(width)
    )


def test_coefficients_are_the_sums_of_the_definition() -> None:
    found = low_frequencies(images(), 3)
    assert found.shape == (3, 2, 3, 3)
    for row in range(3):
        for column in range(3):
            assert float(found[1, 0, row, column]) == pytest.approx(coefficient(images()[1, 0], row, column), abs=1e-12)


def test_all_frequencies_are_the_whole_transform_and_give_the_image_back() -> None:
    x = images()
    found = low_frequencies(x, 7)
    assert found.shape == x.shape  # the shorter axis has five
    expected = scipy.fft.dctn(x.numpy(), axes=(2, 3), norm="ortho")
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=0, atol=1e-12)
    torch.testing.assert_close(from_low_frequencies(found, 7, 5), x, rtol=0, atol=1e-12)


def test_images_made_of_low_frequencies_have_these_and_no_others() -> None:
    found = low_frequencies(from_low_frequencies(low_frequencies(images(), 2), 7, 5), 7)
    torch.testing.assert_close(found[:, :, :2, :2], low_frequencies(images(), 2), rtol=0, atol=1e-12)
    found[:, :, :2, :2] = 0
    assert float(found.abs().max()) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_precision_is_that_of_the_images(dtype: torch.dtype) -> None:
    x = images().to(dtype)
    assert low_frequencies(x, 3).dtype == dtype
    assert from_low_frequencies(low_frequencies(x, 3), 7, 5).dtype == dtype
