"""Small filters learned from patches of the first images, without labels: Coates, Lee and Ng (2011), online.

A patch less its mean, over its deviation, is whitened and compared with filters of length 1. How far the response goes
beyond a threshold, in either direction, is averaged over the cells of a grid; its square root is a feature. The first
half of `first_images` gives mean and covariance of patches, the second half moves filters that were drawn at random to
the centroids of the patches that respond most to them (spherical k-means). No patch is kept. Before these features, the
frequencies of `descriptor` may come.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..checks import brief, check_counts, check_not_negative, check_positive
from ..errors import ConfigError
from ..recall.kernels import call, can_call
from ..threads import Threads
from .base import NetworkConfig
from .descriptor import DescriptorConfig, Frequencies
from .fixed import FixedFeatures, image_shape
from .mlp import check_hidden
from .moments import merged

QUIET = 1e-3  # added to mean responses before their square root
FORGET = 0.9  # weight of earlier batches, by which centroids forget how they began
BLOCK = 100  # filters whose responses are held at a time
BATCH = 20  # images whose patches are held at a time


@dataclass(frozen=True)
class PatchesConfig(NetworkConfig):
    """Filters of patches, set by the first images, and layers that can be trained."""

    kind: ClassVar[str] = "patches"

    filters: int = 148
    """Number of filters; each gives two features per cell of the grid."""

    size: int = 6
    """Height and width of a patch."""

    grid: int = 2
    """Cells in each direction over which responses are averaged."""

    columns: int | None = None
    """Cells across, if not as many as down."""

    threshold: float = 0.5
    """What a response must exceed."""

    contrast: float = 10 / 255**2
    """Added to the variance of a patch, so that flat ones stay faint."""

    whitening: float = 0.1
    """Added to the variances of patches in all directions before they are made equal."""

    mirror: bool = True
    """Describe an image and its mirror image alike, as is right for natural images and wrong for digits."""

    frequencies: int = 0
    """Frequencies of pixels and edges in each direction that come first, as in `descriptor`; 0 for none."""

    hidden: tuple[int, ...] = ()
    """Widths of the hidden layers on top; none for one linear layer."""

    first_images: int = 100
    """Images of the stream that set the filters."""

    def __post_init__(self) -> None:
        counts = ("filters", "size", "grid", "first_images", *(["columns"] if self.columns is not None else []))
        check_counts(self, "network", *counts)
        check_not_negative(self, "network", "threshold")
        check_positive(self, "network", "contrast", "whitening")
        check_hidden(self.hidden)
        if self.size > 100:
            raise ConfigError(f"network.size is {brief(self.size)}; expected a patch of 1 to 100 rows")
        if self.frequencies:
            _ = self.descriptor  # refuses what is out of range

    @property
    def descriptor(self) -> DescriptorConfig:
        """The descriptor that comes first."""
        return DescriptorConfig(
            self.frequencies, self.frequencies, map_size=max(8, self.frequencies), mirror=self.mirror
        )

    @property
    def cells(self) -> tuple[int, int]:
        """Cells down and across."""
        return self.grid, self.columns or self.grid

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        """The network for images of this shape; filters and weights come from torch's global generator."""
        least = max(self.size + max(self.cells) - 1, self.descriptor.map_size if self.frequencies else 1)
        return Patches(image_shape(self.kind, input_shape, least), self, classes)


class Patches(FixedFeatures):
    """Responses to filters that the first images set."""

    def __init__(self, shape: tuple[int, int, int], config: PatchesConfig, classes: int) -> None:
        frequencies = Frequencies(shape, config.descriptor) if config.frequencies else None
        features = 2 * config.filters * math.prod(config.cells) + (0 if frequencies is None else frequencies.count)
        super().__init__(features, config.hidden, classes, config.first_images)
        self.config, self.frequencies, self.shape, self._threads = config, frequencies, shape, Threads()
        channels, height, width = shape
        values = channels * config.size**2
        self.places = (height - config.size + 1) * (width - config.size + 1)
        self.register_buffer("patch_mean", torch.zeros(values))
        self.register_buffer("whitening", torch.zeros(values, values))  # at first the scatter it is made of
        self.register_buffer("centroids", F.normalize(torch.randn(config.filters, values), dim=1))
        sides = (height - config.size + 1, width - config.size + 1)
        cells = (_cells(side, count) for side, count in zip(sides, config.cells, strict=True))
        self.register_buffer("cells", torch.kron(*cells), persistent=False)

    def features(self, x: Tensor) -> Tensor:
        """Frequencies, if any, and the square roots of mean responses; those of an image depend on it alone."""
        threads = min(torch.get_num_threads(), len(x))
        if threads < 2 or torch.is_grad_enabled() or x.device.type != "cpu" or _recorded(x):
            return self._features(x)
        return self._threads.each(self._features, x, threads)

    def filters(self) -> tuple[Tensor, Tensor]:
        """Filters of normalized patches, whitening included, and what is added to their responses."""
        centroids = F.normalize(self.get_buffer("centroids"), dim=1)
        if int(self.get_buffer("shown")) < self._first_half:
            return centroids, -(centroids @ self.get_buffer("patch_mean"))
        filters = centroids @ self.get_buffer("whitening")
        return filters, -(filters @ self.get_buffer("patch_mean"))

    def take(self, x: Tensor, shown: int) -> None:
        """First the covariance of patches, then the centroids."""
        earlier = max(0, self._first_half - shown)
        for part in _chunks(x[:earlier]):
            self._add_to_scatter(self._rows(part), shown)
            shown += len(part)
        if 0 < earlier <= len(x):
            self._whiten(shown * self.places)
        for part in _chunks(x[earlier:]):
            self._move_centroids(self._rows(part))

    @property
    def _first_half(self) -> int:
        return (self.first_images + 1) // 2

    def _patches(self, x: Tensor) -> Tensor:
        """Every patch of every image, less its mean and over its deviation: (images, values, places)."""
        size = self.config.size
        patches = x.unfold(2, size, 1).unfold(3, size, 1).permute(0, 1, 4, 5, 2, 3).flatten(4).flatten(1, 3)
        patches = patches - patches.mean(1, keepdim=True)
        variance = patches.square().sum(1, keepdim=True) / max(patches.shape[1] - 1, 1)
        return patches * (variance + self.config.contrast).rsqrt()

    def _rows(self, x: Tensor) -> Tensor:
        """The same, one row per patch."""
        return self._patches(x).transpose(1, 2).flatten(0, 1)

    def _features(self, x: Tensor) -> Tensor:
        """The same, in this thread."""
        filters, offsets = self.filters()
        # Whatever else the input is, torch says what is wrong with it; C would not.
        if can_call(x) and x.dtype == filters.dtype and x.shape[1:] == self.shape and not _recorded(x):
            found = self._compiled(x.contiguous(), filters, offsets)
        else:
            # One image at a time, as in C; an export has to work for any number of them.
            parts = (x,) if _recorded(x) else torch.split(x, 1)
            found = torch.cat([self._in_torch(part, filters, offsets) for part in parts])
        return found if self.frequencies is None else torch.cat([self.frequencies(x), found], 1)

    def _compiled(self, x: Tensor, filters: Tensor, offsets: Tensor) -> Tensor:
        """By the functions in C around matrix products, of an image and some filters: their responses stay in cache."""
        config, (height, width) = self.config, x.shape[2:]
        rows, columns, cells = height - config.size + 1, width - config.size + 1, math.prod(config.cells)
        # What a mirror leaves and what it negates, of filters and patches, give responses to both for the price of one.
        parts = [part / 2 for part in _even_and_odd(filters, config.size)] if config.mirror else [filters]
        none = [None] * (2 - len(parts))
        patches = [x.new_empty(part.shape[1], self.places) for part in parts]
        responses = [x.new_empty(min(BLOCK, config.filters), self.places) for _ in parts]
        found, work = x.new_empty(len(x), 2 * config.filters * cells), x.new_empty(4 * max(columns, 64))
        for image, features in zip(x, found, strict=True):
            shape = (*x.shape[1:], config.size, config.mirror)
            call("patches", (image, *patches, *none, work), *shape, config.contrast)
            for first in range(0, config.filters, BLOCK):
                last = min(first + BLOCK, config.filters)
                made = [response[: last - first] for response in responses]
                for part, values, response in zip(parts, patches, made, strict=True):
                    torch.mm(part[first:last], values, out=response)
                tensors = (*made, *none, offsets[first:], features[first * cells :], work)
                sizes = (last - first, rows, columns, *config.cells, config.filters * cells)
                call("patch_features", tensors, *sizes, config.threshold, QUIET)
        return found

    def _in_torch(self, x: Tensor, filters: Tensor, offsets: Tensor) -> Tensor:
        """The same where there are no such functions, or gradients are wanted."""
        patches = self._patches(x)
        if not self.config.mirror:
            return self._rooted(self._beyond(filters @ patches + offsets[:, None]))
        (even, odd), (left, negated) = (_even_and_odd(values, self.config.size) for values in (filters, patches))
        same, other = even / 2 @ left + offsets[:, None], odd / 2 @ negated
        here, there = self._beyond(same + other), self._beyond(same - other).flip(-1)
        return self._rooted((here + there) / 2)

    def _beyond(self, responses: Tensor) -> Tensor:
        """Means over the cells of what is beyond the threshold, up and down: (images, 2, filters, rows, columns)."""
        beyond = F.softshrink(responses, self.config.threshold)
        means = torch.stack([beyond.relu(), (-beyond).relu()], 1) @ self.get_buffer("cells").T
        return torch.unflatten(means, -1, self.config.cells)

    def _rooted(self, means: Tensor) -> Tensor:
        return (means + QUIET).sqrt().flatten(1)

    def _add_to_scatter(self, patches: Tensor, shown: int) -> None:
        mean, deviations = merged(self.get_buffer("patch_mean"), shown * self.places, patches)
        self.get_buffer("patch_mean").copy_(mean)
        self.get_buffer("whitening").addmm_(deviations.T, deviations)

    def _whiten(self, count: int) -> None:
        """Replace the scatter by the symmetric matrix that whitens (ZCA)."""
        scatter = self.get_buffer("whitening")
        variances, axes = torch.linalg.eigh(scatter.double() / count)
        scatter.copy_(axes * (variances.clamp_min(0) + self.config.whitening).rsqrt() @ axes.T)

    def _move_centroids(self, patches: Tensor) -> None:
        """Every patch draws the centroid it responds most to, in either direction, as much as it responds."""
        white = F.normalize((patches - self.get_buffer("patch_mean")) @ self.get_buffer("whitening"), dim=1)
        kept = self.get_buffer("centroids")
        responses = white @ F.normalize(kept, dim=1).T
        nearest = responses.abs().argmax(1)
        white *= responses.gather(1, nearest[:, None])
        kept.mul_(FORGET).index_add_(0, nearest, white)


def _chunks(x: Tensor) -> tuple[Tensor, ...]:
    return torch.split(x, BATCH) if len(x) else ()


def _cells(size: int, cells: int) -> Tensor:
    """The matrix that averages `size` values over cells that cover them evenly, alike from both ends."""
    averages: Tensor = F.adaptive_avg_pool1d(torch.eye(size)[None], cells)[0].T.contiguous()
    return averages


def _recorded(x: Tensor) -> bool:
    """Whether operations on it are noted, for gradients or for export."""
    tracing: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return tracing or (torch.is_grad_enabled() and x.requires_grad) or type(x) is not Tensor


def _even_and_odd(values: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Sums and differences of columns that a mirror swaps; a middle one, which has no other, times √2."""
    columns, half = torch.unflatten(values, 1, (-1, width)), width // 2
    one, other = columns[:, :, :half], columns.flip(2)[:, :, :half]
    middle = math.sqrt(2) * columns[:, :, half : width - half]
    return torch.cat([one + other, middle], 2).flatten(1, 2), (one - other).flatten(1, 2)
