"""A network one step ahead: after a step on the real batch alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .frozen_copy import frozen_copy


@torch.no_grad()
def one_step_ahead(network: nn.Module, gradients: Sequence[Tensor | None], rate: float) -> nn.Module:
    """A copy of the network after one plain SGD step; the network itself is unchanged."""
    ahead = frozen_copy(network)
    for p, gradient in zip(ahead.parameters(), gradients, strict=True):
        if gradient is not None:
            p.sub_(rate * gradient)
    return ahead
