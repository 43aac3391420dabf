"""Random Fourier features of the inputs and a linear layer: a Gaussian kernel, approximated without training.

Rahimi and Recht (2007): cos(w·x + b) with w drawn from a Gaussian and b uniform, so that products of features are, on
average, exp(−|x − x'|² / (2·width²)). RanDumb (Prabhu et al. 2024) adds a linear discriminant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..checks import check_counts, check_positive
from .base import NetworkConfig


@dataclass(frozen=True)
class FourierConfig(NetworkConfig):
    """Random Fourier features and a linear layer."""

    kind: ClassVar[str] = "fourier"

    features: int = 1000
    """Number of random features."""

    width: float = 20.0
    """Width of the Gaussian kernel, as a distance between inputs."""

    def __post_init__(self) -> None:
        check_counts(self, "network", "features")
        check_positive(self, "network", "width")

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        """The network for inputs of this shape; frequencies come from torch's global generator."""
        return Fourier(math.prod(input_shape), self.features, self.width, classes)


class Fourier(nn.Module):
    """Fixed random features; only the linear layer can be trained."""

    treats_images_alone = True

    def __init__(self, inputs: int, features: int, width: float, classes: int) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.randn(inputs, features) / width)
        self.register_buffer("phases", 2 * math.pi * torch.rand(features))
        self.classify = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch."""
        frequencies, phases = self.get_buffer("frequencies"), self.get_buffer("phases")
        features = math.sqrt(2 / len(phases)) * torch.cos(x.flatten(1) @ frequencies + phases)
        logits: Tensor = self.classify(features)
        return logits
