"""The paper's network for natural images: ResNet18 with 20 base channels, 3×3 stem and no max-pool.

1,094,750 parameters for CIFAR10 (32×32, 160 features), 1,157,240 for MiniImageNet (84×84, 640 features).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import ConfigError
from .base import NetworkConfig

POOL = 4  # average pool of the last feature map: 4×4 → 1×1 for 32×32 inputs, 11×11 → 2×2 for 84×84


# With fewer input channels, oneDNN's weight gradient of a strided 1×1 convolution writes past its memory on processors
# without AVX-512, and the process dies (torch 2.13). The input is then strided by slicing, which is equivalent.
FEWEST_STRIDED = 8


@dataclass(frozen=True)
class ResNet18Config(NetworkConfig):
    """ResNet18 without max-pool."""

    kind: ClassVar[str] = "resnet18"

    channels: int = 20
    """Channels of the stem and the first stage; each later stage doubles them."""

    stem_momentum: float | None = None
    """Momentum of the stem's running batch statistics; if unset, a cumulative average over all passes, as published."""

    def __post_init__(self) -> None:
        if not 1 <= self.channels <= 10_000:
            raise ConfigError(f"network.channels is {self.channels}; expected 1 to 10,000")
        if self.stem_momentum is not None and not 0 < self.stem_momentum <= 1:
            raise ConfigError(f"network.stem_momentum is {self.stem_momentum}; expected a number in (0, 1] or none")

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        """The network for images of this shape; weights come from torch's global generator."""
        if len(input_shape) != 3:
            raise ConfigError(
                f"resnet18 needs images (channels, height, width) but the data have shape {input_shape}; use an mlp"
            )
        network = ResNet18(input_shape, classes, self.channels, self.stem_momentum)
        # The layout that learners give their images, so weights are not converted at every pass.
        return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut; the shortcut is a 1×1 convolution where the shape changes."""

    treats_images_alone = True  # except for batch-norm: copies of an image need only be run once
    same_steps = True  # for every batch, so that recall can plan them

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.slice = stride if channels_in < FEWEST_STRIDED else 1
        self.shortcut = nn.Sequential()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride // self.slice, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Features of the same or half the height and width."""
        features = F.relu(self.norm1(self.conv1(x)))
        kept = x if self.slice == 1 else x[:, :, :: self.slice, :: self.slice]
        return F.relu(self.norm2(self.conv2(features)) + self.shortcut(kept))


class ResNet18(nn.Module):
    """Stem, four stages of two blocks, 4×4 average pool, one linear layer."""

    treats_images_alone = True  # except for batch-norm: copies of an image need only be run once
    same_steps = True  # for every batch, so that recall can plan them

    def __init__(self, input_shape: tuple[int, ...], classes: int, channels: int, stem_momentum: float | None) -> None:
        super().__init__()
        image_channels, height, width = input_shape
        widths = [channels, channels, 2 * channels, 4 * channels, 8 * channels]
        self.stem = nn.Sequential(
            nn.Conv2d(image_channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels, momentum=stem_momentum),
            nn.ReLU(),
        )
        blocks: list[nn.Module] = []
        for stage, (channels_in, channels_out) in enumerate(itertools.pairwise(widths)):
            blocks += [BasicBlock(channels_in, channels_out, 1 if stage == 0 else 2)]
            blocks += [BasicBlock(channels_out, channels_out, 1)]
        self.stages = nn.Sequential(*blocks)
        # Three stride-2 stages divide the size by 8, rounding up; maps smaller than the pool are averaged whole.
        pooled = [max(-(-size // 8) // POOL, 1) for size in (height, width)]
        self.whole_map = min(-(-height // 8), -(-width // 8)) < POOL
        features = widths[-1] * (1 if self.whole_map else pooled[0] * pooled[1])
        self.classify = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch."""
        features = self.stages(self.stem(x))
        pooled = F.adaptive_avg_pool2d(features, 1) if self.whole_map else F.avg_pool2d(features, POOL)
        logits: Tensor = self.classify(pooled.flatten(1))
        return logits
