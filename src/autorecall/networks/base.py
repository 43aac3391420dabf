"""The base class of all settings of networks, users' own included."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from ..storage.extensible import Extensible


@dataclass(frozen=True)
class NetworkConfig(Extensible):
    """How to build a network.

    Derive a frozen dataclass from it for a network of your own, and its settings become options of the command line.
    """

    tag: ClassVar[str] = "kind"
    kind: ClassVar[str]

    @abstractmethod
    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        """The network for inputs of this shape; weights come from torch's global generator."""
