"""Variational auto-encoders (Kingma and Welling 2014), the generators of generative replay.

The encoder maps an image to a distribution of latents z, q(z|x) = N(mean, variance); the decoder maps z to an image.
Both raise a bound on log p(x): the reconstruction minus the KL divergence of q from the prior p(z) = N(0, 1).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..checks import check_choices, check_counts
from ..errors import ConfigError, DivergedError, InputError
from .gated import Gated

PROBABILITY = 1e-5  # Bernoulli means are kept this far from 0 and 1
SMALLEST_VARIANCE, LARGEST_VARIANCE = 0.01, 7.0  # of the convolutional encoder


class VAE(nn.Module, ABC):
    """Encoder, decoder, and the two parts of their bound."""

    def __init__(self, encoder: nn.Module, mean: nn.Module, variance: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.mean, self.variance, self.decoder = encoder, mean, variance, decoder

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of q(z|x)."""
        features = self.encoder(x)
        return self.mean(features), self.variance(features)

    def decode(self, z: Tensor) -> Tensor:
        """The images decoded from latents."""
        images: Tensor = self.decoder(z)
        return images

    def kl(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Latents drawn from q(z|x), and their estimate of KL(q‖p): log q(z) − log p(z), averaged over the batch."""
        mean, variance = self.encode(x)
        z = mean + variance.sqrt() * noise
        return z, sampled_kl(z, mean, variance).mean()

    @abstractmethod
    def reconstruction(self, x: Tensor, decoded: Tensor) -> Tensor:
        """How far decoded latents are from their images."""

    def loss(self, x: Tensor, noise: Tensor, kl_weight: float) -> Tensor:
        """Minus the bound: reconstruction + β·KL."""
        (loss,) = self.losses([x], noise, kl_weight)
        return loss

    def losses(self, batches: list[Tensor], noise: Tensor, kl_weight: float) -> list[Tensor]:
        """The same for several batches in one pass; `noise` is for all of them, one after the other."""
        sizes = [len(x) for x in batches]
        mean, variance = self.encode(torch.cat(batches))
        z = mean + variance.sqrt() * noise
        parts = zip(batches, *(torch.split(each, sizes) for each in (self.decode(z), z, mean, variance)), strict=True)
        return [self.reconstruction(x, decoded) + kl_weight * sampled_kl(*found).mean() for x, decoded, *found in parts]


def sampled_kl(z: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """log q(z) − log p(z) for each row; its mean over q is KL(q‖p) = ½·Σ(mean² + variance − log variance − 1)."""
    return 0.5 * (z.square() - variance.log() - (z - mean).square() / variance).sum(1)


@dataclass(frozen=True)
class MLPVAEConfig:
    """Perceptrons as encoder and decoder, for images with grey values in [0, 1]."""

    kind: ClassVar[str] = "mlp-vae"

    latents: int = 50
    """Dimensions of z."""

    depth: int = 2
    """Hidden layers each of encoder and decoder."""

    hidden: int = 128
    """Width of the hidden layers."""

    dropout: float = 0.0
    """Fraction of hidden values dropped in training."""

    def __post_init__(self) -> None:
        check_counts(self, "learner.vae", "latents", "depth", "hidden")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"learner.vae.dropout is {self.dropout}; expected at least 0 and below 1")

    def check(self, x: Tensor) -> None:
        """Refuse values outside [0, 1]; any shape will do."""
        low, high = float(x.min()), float(x.max())
        if low < 0 or high > 1:
            raise InputError(f"inputs range from {low:.4g} to {high:.4g}; mlp-vae needs them in [0, 1]: scale them")

    def build(self, shape: tuple[int, ...]) -> VAE:
        """The generator for inputs of this shape; weights come from torch's global generator."""
        return _BernoulliVAE(self, shape)


class _BernoulliVAE(VAE):
    """A pixel is a Bernoulli variable: the reconstruction is −log of its probability, summed over pixels."""

    def __init__(self, config: MLPVAEConfig, shape: tuple[int, ...]) -> None:
        pixels, hidden = math.prod(shape), config.hidden
        super().__init__(
            nn.Sequential(nn.Flatten(), *self._layers(pixels, config)),
            nn.Linear(hidden, config.latents),
            nn.Sequential(nn.Linear(hidden, config.latents), nn.Softplus()),
            nn.Sequential(
                *self._layers(config.latents, config), nn.Linear(hidden, pixels), nn.Sigmoid(), nn.Unflatten(1, shape)
            ),
        )

    def reconstruction(self, x: Tensor, decoded: Tensor) -> Tensor:
        """Summed over pixels, averaged over the batch."""
        means = decoded.clamp(PROBABILITY, 1 - PROBABILITY)
        try:
            return F.binary_cross_entropy(means, x, reduction="sum") / len(x)
        except RuntimeError as error:  # which torch raises for what is no probability
            raise DivergedError("a pixel of the generator", math.nan) from error

    @staticmethod
    def _layers(inputs: int, config: MLPVAEConfig) -> list[nn.Module]:
        layers: list[nn.Module] = []
        for depth in range(config.depth):
            layers += [nn.Linear(config.hidden if depth else inputs, config.hidden), nn.ReLU()]
            layers += [nn.Dropout(config.dropout)] if config.dropout else []
        return layers


@dataclass(frozen=True)
class ConvVAEConfig:
    """Gated convolutions, for natural images; height and width must be multiples of 4."""

    kind: ClassVar[str] = "conv-vae"

    latents: int = 50
    """Dimensions of z."""

    reconstruction: Literal["sum", "mean"] = "sum"
    """sum: squared error summed over an image, as in the bound. mean: averaged over all values of the batch and divided
    by the batch size again, as published; next to a summed KL divergence it has almost no weight."""

    def __post_init__(self) -> None:
        check_choices(self, "learner.vae")
        check_counts(self, "learner.vae", "latents")

    def check(self, x: Tensor) -> None:
        """Refuse sizes that cannot be halved twice."""
        shape = tuple(x.shape[1:])
        if len(shape) != 3 or shape[1] % 4 or shape[2] % 4:
            raise InputError(
                f"inputs have shape {shape}; conv-vae needs images (channels, height, width) whose height and width "
                "are multiples of 4: resize them, or use mlp-vae"
            )

    def build(self, shape: tuple[int, ...]) -> VAE:
        """The generator for images of this shape; weights come from torch's global generator."""
        return _ConvVAE(self, shape)


class _ConvVAE(VAE):
    """The published gated network: six layers each way, two of them with stride 2."""

    def __init__(self, config: ConvVAEConfig, shape: tuple[int, ...]) -> None:
        channels, height, width = shape
        whole = (height // 4, width // 4)  # the image after two strides

        def down(inputs: int, outputs: int, stride: int = 1) -> nn.Module:
            return Gated(lambda: nn.Conv2d(inputs, outputs, 5, stride, padding=2))

        def up(inputs: int, outputs: int, stride: int = 1) -> nn.Module:
            return Gated(lambda: nn.ConvTranspose2d(inputs, outputs, 5, stride, padding=2, output_padding=stride - 1))

        encoder = [down(channels, 32), down(32, 32, 2), down(32, 64), down(64, 64, 2), down(64, 64)]
        decoder = [up(64, 64), up(64, 32, 2), up(32, 32), up(32, 32, 2), up(32, 32)]
        super().__init__(
            nn.Sequential(*encoder, Gated(lambda: nn.Conv2d(64, 256, whole)), nn.Flatten()),
            nn.Linear(256, config.latents),
            nn.Sequential(
                nn.Linear(256, config.latents), nn.Softplus(), nn.Hardtanh(SMALLEST_VARIANCE, LARGEST_VARIANCE)
            ),
            nn.Sequential(
                nn.Unflatten(1, (config.latents, 1, 1)),
                Gated(lambda: nn.ConvTranspose2d(config.latents, 64, whole)),
                *decoder,
                _TwoAsOne(nn.Conv2d(32, 256, 5, padding=2), nn.Conv2d(256, channels, 1)),
            ),
        )
        self._published = config.reconstruction == "mean"

    def reconstruction(self, x: Tensor, decoded: Tensor) -> Tensor:
        """Squared error, averaged over the batch."""
        error = F.mse_loss(decoded, x, reduction="mean" if self._published else "sum")
        return error / len(x)


class _TwoAsOne(nn.Module):
    """A convolution followed directly by a 1×1 convolution, run as one with the product of their weights.

    In the published decoder these two are two thirds of the arithmetic; as one, next to nothing.
    """

    def __init__(self, first: nn.Conv2d, second: nn.Conv2d) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        """Both as one convolution."""
        assert self.first.bias is not None
        assert self.second.bias is not None
        mixed = self.second.weight.flatten(1)
        weight = torch.einsum("om,mihw->oihw", mixed, self.first.weight)
        return F.conv2d(x, weight, mixed @ self.first.bias + self.second.bias, padding=self.first.padding)


def draw(rows: int, latents: int, generator: torch.Generator, like: Tensor) -> Tensor:
    """Standard normal numbers, drawn on the CPU, so a seed means the same on every device."""
    return torch.randn(rows, latents, generator=generator).to(like)
