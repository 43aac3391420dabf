"""Networks whose features are made by hand or set by the first images of a stream, and never trained.

A learner shows such a network every batch before it learns from it (`show`). The network takes what it needs of the
first images, such as a running mean, and keeps none of them; from then on its features stay as they are.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from .mlp import linear_layers


class FixedFeatures(nn.Module, ABC):
    """Fixed features of a batch, and layers on top of them that can be trained."""

    def __init__(self, features: int, hidden: tuple[int, ...], classes: int, first_images: int) -> None:
        """The features change until `first_images` images have been shown."""
        super().__init__()
        self.first_images = first_images
        self.classify = nn.Sequential(*linear_layers(features, hidden, classes))
        self.register_buffer("shown", torch.zeros((), dtype=torch.int64))

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """One row of features per image."""

    @abstractmethod
    def take(self, x: Tensor, shown: int) -> None:
        """Take what is needed of a batch that comes after `shown` images."""

    @property
    def settled(self) -> bool:
        """Whether the features stay as they are."""
        return int(self.get_buffer("shown")) >= self.first_images

    @torch.no_grad()
    def show(self, x: Tensor) -> None:
        """Set features by a batch, if it is one of the first; later ones change nothing."""
        if not self.settled:
            shown = self.get_buffer("shown")
            self.take(x, int(shown))
            shown += len(x)

    def kept_numbers(self) -> int:
        """The numbers that make the features."""
        state = self.state_dict()
        return sum(state[name].numel() for name, _ in self.named_buffers() if name in state and name != "shown")

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch."""
        logits: Tensor = self.classify(self.features(x))
        return logits


def image_shape(kind: str, shape: tuple[int, ...], least: int) -> tuple[int, int, int]:
    """The shape (channels, height, width) of images with at least so many rows and columns, or a ConfigError."""
    if len(shape) != 3:
        raise ConfigError(f"{kind} needs images (channels, height, width) but the data have shape {shape}; use an mlp")
    channels, height, width = shape
    if min(height, width) < least:
        raise ConfigError(
            f"{kind} needs images of at least {least} × {least} with these settings but the data have {height} × "
            f"{width}; use larger images, or lower its settings"
        )
    return channels, height, width


def cosines(size: int, frequencies: int, kind: torch.dtype = torch.float32) -> Tensor:
    """The first rows of the orthonormal discrete cosine transform (DCT-II) of `size` values."""
    places, rows = torch.arange(size, dtype=kind) + 0.5, torch.arange(frequencies, dtype=kind)[:, None]
    scale = math.sqrt(2 / size) * torch.where(rows == 0, torch.tensor(0.5, dtype=kind).sqrt(), 1.0)
    return scale * torch.cos(math.pi / size * rows * places)
