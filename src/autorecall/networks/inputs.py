"""How images enter a network: their range, and their size if the network wants another one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Inputs:
    """What is done to images in [0, 1] before a network sees them."""

    range: Literal["unit", "symmetric"] = "unit"
    """unit: [0, 1]; symmetric: [-1, 1]."""

    size: int | None = None
    """Height and width; if unset, as they are."""

    def prepare(self, x: Tensor) -> Tensor:
        """Inputs as the network sees them."""
        if self.size is not None and x.dim() == 4 and x.shape[2:] != (self.size, self.size):
            resized = F.interpolate(x, (self.size, self.size), mode="bilinear", antialias=True)
            x = resized.clamp(x.min(), x.max())  # its weights add up to 1 only up to rounding
        return 2 * x - 1 if self.range == "symmetric" else x
