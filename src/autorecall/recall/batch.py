"""A batch of recalled images: the distinct ones, each with its count."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from .copies import distinct

Initial: TypeAlias = Literal["real", "noise", "shift"]


@dataclass(frozen=True)
class Recalled:
    """A recalled batch."""

    images: Tensor
    """The distinct recalled inputs."""

    counts: Tensor
    """How often each of them occurs; the counts add up to M."""

    origins: Tensor | None
    """The real image each one started from; None for noise."""

    @cached_property
    def total(self) -> int:
        """M, the number of images the batch stands for."""
        return int(self.counts.sum())

    @cached_property
    def weights(self) -> Tensor:
        """Each one's share of the batch, counts / M."""
        return self.counts.to(self.images) / self.total

    @property
    def multiplicities(self) -> Tensor | None:
        """The counts if any image occurs more than once; None if every layer can work unchanged."""
        return None if len(self.counts) == self.total else self.counts


@dataclass(frozen=True)
class Aimed(Recalled):
    """A batch of images, each with a class to show."""

    classes: Tensor
    """The class of each distinct image; an image with two classes to show appears twice."""


def initial_images(x: Tensor, count: int, initial: Initial, generator: torch.Generator, keep_copies: bool) -> Recalled:
    """M starting points: images of the real batch, or noise. Unless copies are kept, each image appears once.

    Those to be shifted start as images of the real batch.
    """
    if initial == "noise":
        noise = torch.rand((count, *x.shape[1:]), generator=generator, dtype=x.dtype)
        return Recalled(noise.to(x.device), torch.ones(count, dtype=torch.int64, device=x.device), None)
    origins = choose(len(x), count, generator)
    counts = torch.ones_like(origins)
    if not keep_copies:
        origins, counts = distinct(origins)
    return Recalled(x[origins.to(x.device)], counts.to(x.device), origins)


def choose(available: int, count: int, generator: torch.Generator) -> Tensor:
    """`count` numbers below `available`, without replacement if there are enough of them.

    Drawn on the CPU, so a seed means the same on every device.
    """
    if count <= available:
        return torch.randperm(available, generator=generator)[:count]
    return torch.randint(available, (count,), generator=generator)


def like(other: Tensor, x: Tensor) -> Tensor:
    """The same values in the memory layout of x."""
    return other if other.stride() == x.stride() else torch.empty_like(x).copy_(other)


def per_image(values: Tensor, images: Tensor) -> Tensor:
    """One number per image, shaped to broadcast over images."""
    return values.view(-1, *(1,) * (images.dim() - 1))
