"""The paper's network for MNIST: 784-400-400-10 with ReLU, 478,410 parameters."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from ..errors import ConfigError
from .base import NetworkConfig


def check_hidden(hidden: tuple[int, ...]) -> None:
    """Refuse widths of hidden layers that cannot be."""
    if any(not 1 <= width <= 10**6 for width in hidden):
        raise ConfigError(f"network.hidden is {hidden}; every width must be from 1 to 1,000,000")


@dataclass(frozen=True)
class MLPConfig(NetworkConfig):
    """A multi-layer perceptron."""

    kind: ClassVar[str] = "mlp"

    hidden: tuple[int, ...] = (400, 400)
    """Widths of the hidden layers."""

    def __post_init__(self) -> None:
        check_hidden(self.hidden)

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        """The network for inputs of this shape; weights come from torch's global generator."""
        return MLP(math.prod(input_shape), self.hidden, classes)


class MLP(nn.Module):
    """Takes images as images and flattens them itself, so that total variation still sees rows and columns."""

    treats_images_alone = True  # copies of an image need only be run once
    same_steps = True  # for every batch, so that recall can plan them

    def __init__(self, inputs: int, hidden: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), *linear_layers(inputs, hidden, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch."""
        logits: Tensor = self.layers(x)
        return logits


def linear_layers(inputs: int, hidden: tuple[int, ...], classes: int) -> list[nn.Module]:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for width_in, width_out in itertools.pairwise((inputs, *hidden)):
        layers += [nn.Linear(width_in, width_out), nn.ReLU()]
    return [*layers, nn.Linear((inputs, *hidden)[-1], classes)]
