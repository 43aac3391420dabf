"""Gated layers, value ⊙ σ(gate), and the perceptron made of them that generative replay uses on MNIST."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from ..errors import ConfigError
from .base import NetworkConfig
from .mlp import check_hidden


class Gated(nn.Module):
    """Two layers of the same shape: the second, through a sigmoid, decides how much of the first passes."""

    treats_images_alone = True

    def __init__(self, layer: Callable[[], nn.Module], activation: nn.Module | None = None) -> None:
        super().__init__()
        self.value, self.gate = layer(), layer()
        self.activation = activation or nn.Identity()

    def output_layers(self) -> list[nn.Module]:
        """Both, if the network ends here."""
        return [self.value, self.gate]

    def forward(self, x: Tensor) -> Tensor:
        """value ⊙ σ(gate)."""
        gated: Tensor = self.activation(self.value(x)) * self.gate(x).sigmoid()
        return gated


@dataclass(frozen=True)
class GatedMLPConfig(NetworkConfig):
    """A perceptron of gated layers with dropout: 784-400-10 has 636,020 parameters."""

    kind: ClassVar[str] = "gated-mlp"

    hidden: tuple[int, ...] = (400,)
    """Widths of the hidden layers."""

    dropout: float = 0.2
    """Fraction of hidden values dropped in training."""

    def __post_init__(self) -> None:
        check_hidden(self.hidden)
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"network.dropout is {self.dropout}; expected at least 0 and below 1")

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        """The network for inputs of this shape; weights come from torch's global generator."""
        widths = (math.prod(input_shape), *self.hidden)
        layers: list[nn.Module] = [nn.Flatten()]
        for wide, narrow in itertools.pairwise(widths):
            layers += [_gated_linear(wide, narrow, nn.ReLU()), nn.Dropout(self.dropout)]
        return nn.Sequential(*layers, _gated_linear(widths[-1], classes))


def _gated_linear(inputs: int, outputs: int, activation: nn.Module | None = None) -> Gated:
    return Gated(lambda: nn.Linear(inputs, outputs), activation)
