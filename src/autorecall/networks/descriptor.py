"""A descriptor of images made by hand: low frequencies of the pixels and of the energy of their edges.

The discrete cosine transform (DCT) of every channel, and of maps of gradient energy, one per orientation. On natural
images a mirrored image shows the same thing, so the descriptor can be the mean of that of an image and of its mirror
image; frequencies that this makes 0 or equal to others are left out. Nothing of it is learned; it is standardized by
the first images of the stream.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..checks import brief, check_counts
from ..errors import ConfigError
from .base import NetworkConfig
from .fixed import FixedFeatures, cosines, image_shape
from .mlp import check_hidden
from .moments import merged

TINY = 1e-12  # keeps the gradient of a square root finite where an image is flat
DARK = 1e-3  # added to energies before their square root
LEAST_SCALE = 1e-3  # of a feature, as a share of the mean: one that hardly varied at first must not explode later


@dataclass(frozen=True)
class DescriptorConfig(NetworkConfig):
    """Low frequencies of pixels and of edges, and layers that can be trained."""

    kind: ClassVar[str] = "descriptor"

    pixels: int = 4
    """Frequencies of the pixels in each direction; 0 for none."""

    edges: int = 4
    """Frequencies of the maps of edges in each direction; 0 for none."""

    orientations: int = 6
    """Maps of edges, each of one orientation."""

    map_size: int = 8
    """Height and width of these maps."""

    mirror: bool = False
    """Describe an image and its mirror image alike, as is right for natural images and wrong for digits."""

    hidden: tuple[int, ...] = ()
    """Widths of the hidden layers on top; none for one linear layer."""

    first_images: int = 100
    """Images of the stream that set the mean and scale of each feature."""

    def __post_init__(self) -> None:
        check_counts(self, "network", "orientations", "map_size", "first_images")
        check_hidden(self.hidden)
        for name in ("pixels", "edges"):
            if not 0 <= getattr(self, name) <= 1000:
                raise ConfigError(f"network.{name} is {brief(getattr(self, name))}; expected 0 to 1,000")
        if not self.pixels and not self.edges:
            raise ConfigError("network.pixels and network.edges are both 0; expected frequencies of one of them")
        if self.edges > self.map_size:
            raise ConfigError(
                f"network.edges is {brief(self.edges)} but maps have {self.map_size} rows; expected at most as many"
            )

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        """The network for images of this shape; weights come from torch's global generator."""
        least = max(self.pixels, self.map_size if self.edges else 1)
        return Descriptor(image_shape(self.kind, input_shape, least), self, classes)


class Frequencies(nn.Module):
    """The descriptor itself, before it is standardized: a function without parameters."""

    def __init__(self, shape: tuple[int, int, int], config: DescriptorConfig) -> None:
        super().__init__()
        channels, height, width = shape
        self.config = config
        # Found again from the config, so they are no part of the state.
        self.register_buffer("rows", cosines(height, config.pixels), persistent=False)
        self.register_buffer("columns", cosines(width, config.pixels), persistent=False)
        self.register_buffer("map_rows", cosines(config.map_size, config.edges), persistent=False)
        for name, size in (("row_cells", height), ("column_cells", width)):
            averages = F.adaptive_avg_pool1d(torch.eye(size)[None], config.map_size)[0].T.contiguous()
            self.register_buffer(name, averages, persistent=False)
        angles = 2 * math.pi / config.orientations * torch.arange(config.orientations)
        self.register_buffer("directions", torch.stack([angles.cos(), angles.sin()]), persistent=False)
        self.count = len(self(torch.zeros(1, channels, height, width))[0])

    def forward(self, x: Tensor) -> Tensor:
        """One row of features per image."""
        x, parts = x.contiguous(), []  # sums are added in the order of memory
        if self.config.pixels:
            rows, columns = self.get_buffer("rows"), self.get_buffer("columns")
            found = _between(rows, x, columns.T)
            parts.append((found[..., ::2] if self.config.mirror else found).flatten(1))
        if self.config.edges:
            cosine = self.get_buffer("map_rows")
            found = _between(cosine, self.edges(x), cosine.T)
            parts += self._mirrored(found) if self.config.mirror else [found.flatten(1)]
        return torch.cat(parts, 1)

    def edges(self, x: Tensor) -> Tensor:
        """Maps of the energy of grey values' gradients, one per orientation: |g|·max(0, cos 2(∠g − φ))²."""
        padded = F.pad(x.mean(1, keepdim=True), (1, 1, 1, 1), mode="replicate")
        across = padded[..., 1:-1, 2:] - padded[..., 1:-1, :-2]
        down = padded[..., 2:, 1:-1] - padded[..., :-2, 1:-1]
        squared = across**2 + down**2 + TINY
        cosine, sine = (across**2 - down**2) / squared, 2 * across * down / squared
        directions = self.get_buffer("directions")
        turned = cosine * directions[0, :, None, None] + sine * directions[1, :, None, None]
        energy = squared.sqrt() * turned.relu() ** 2
        return (self._pooled(energy) + DARK).sqrt()

    def _pooled(self, maps: Tensor) -> Tensor:
        """Means over the cells of a grid."""
        if torch.onnx.is_in_onnx_export():  # which does not know the operation below
            return self.get_buffer("row_cells") @ maps @ self.get_buffer("column_cells").T
        return F.adaptive_avg_pool2d(maps, self.config.map_size)

    def _mirrored(self, found: Tensor) -> list[Tensor]:
        """The mean with the mirror image, where φ is −φ, and frequencies that are odd across change their sign."""
        count = self.config.orientations
        signs = 1 - 2 * (torch.arange(found.shape[-1], device=found.device) % 2)
        parts = []
        for one in range(count // 2 + 1):
            other = (count - one) % count
            mean = (found[:, one] + signs * found[:, other]) / 2
            parts.append((mean[..., ::2] if one == other else mean).flatten(1))
        return parts


def _between(left: Tensor, maps: Tensor, right: Tensor) -> Tensor:
    """left · map · right as plain sums: how a library rounds a matrix product can depend on where in memory it lies."""
    half = (left[:, :, None] * maps[:, :, None]).sum(-2)
    return (half[..., None] * right).sum(-2)


class Descriptor(FixedFeatures):
    """The descriptor, standardized by the first images, and layers on top of it."""

    def __init__(self, shape: tuple[int, int, int], config: DescriptorConfig, classes: int) -> None:
        frequencies = Frequencies(shape, config)
        super().__init__(frequencies.count, config.hidden, classes, config.first_images)
        self.frequencies = frequencies
        self.register_buffer("mean", torch.zeros(frequencies.count))
        self.register_buffer("squares", torch.zeros(frequencies.count))

    def features(self, x: Tensor) -> Tensor:
        """Features of about mean 0 and deviation 1."""
        found: Tensor = self.frequencies(x)
        shown = int(self.get_buffer("shown"))
        if not shown:
            return found
        found, scale = found - self.get_buffer("mean"), (self.get_buffer("squares") / shown).sqrt()
        if not bool(scale.any()):  # one image, or equal ones, do not say how far others are from them
            return found
        return found / scale.clamp_min(LEAST_SCALE * scale.mean() + TINY)

    def take(self, x: Tensor, shown: int) -> None:
        """Add a batch to the mean and to the squared deviations from it."""
        mean, deviations = merged(self.get_buffer("mean"), shown, self.frequencies(x))
        self.get_buffer("mean").copy_(mean)
        self.get_buffer("squares").add_(deviations.square().sum(0))
