"""How alike images are: correlation, and structural similarity (Wang, Bovik, Sheikh and Simoncelli 2004)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

WINDOW, SIGMA = 11, 1.5
STEADY = (0.01**2, 0.03**2)  # (K1·L)² and (K2·L)², for values in [0, 1]


def standardised(images: Tensor) -> Tensor:
    """One row per image, of mean 0 and length 1, so that products of rows are correlations; 0 if it does not vary."""
    rows = images.flatten(1)
    return F.normalize(rows - rows.mean(1, keepdim=True), dim=1)


def structural_similarity(a: Tensor, b: Tensor) -> Tensor:
    """SSIM of pairs of images: the mean over all places of a Gaussian window, 11 wide, that lie within the image.

    Of colour images it is also the mean over channels. 1 for the same image, about 0 for unrelated ones.
    """
    maps = F.conv2d(torch.cat([a, b, a * a, b * b, a * b]).flatten(0, 1)[:, None], _window().to(a))
    mean_a, mean_b, square_a, square_b, product = maps.view(5, *a.shape[:2], *maps.shape[2:])
    variance_a, variance_b = square_a - mean_a**2, square_b - mean_b**2
    covariance = product - mean_a * mean_b
    light, texture = STEADY
    luminance: Tensor = (2 * mean_a * mean_b + light) / (mean_a**2 + mean_b**2 + light)
    structure: Tensor = (2 * covariance + texture) / (variance_a + variance_b + texture)
    return (luminance * structure).flatten(1).mean(1)


def _window() -> Tensor:
    steps = torch.arange(WINDOW, dtype=torch.float64) - WINDOW // 2
    line = torch.exp(-(steps**2) / (2 * SIGMA**2))
    window = torch.outer(line, line)
    return (window / window.sum())[None, None]
