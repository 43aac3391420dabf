"""What is no error and yet hardly meant: said in one sentence, before the first batch is learned."""

from __future__ import annotations

import warnings

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

FAR = 10.0  # standardised images stay within 3 of 0


def warn_of_traps(network: nn.Module, x: Tensor) -> None:
    """Warn of inputs that were not scaled, and of batch-norm that moves inside frozen parts."""
    low, high = (float(end) for end in x.aminmax())
    if max(-low, high) > FAR:
        warnings.warn(
            f"x has values from {low:.4g} to {high:.4g}; networks and recall expect about [0, 1]: divide bytes by 255",
            stacklevel=5,
        )
    moving = [name for name, layer in network.named_modules() if _is_frozen_norm(layer)]
    moving = [name for name in moving if network.get_submodule(name).training or not network.training]
    if moving:
        warnings.warn(
            f"batch-norm layer {moving[0]} is frozen but in train mode, so it goes by the images of each batch, and "
            "its statistics drift; call network.train(), then .eval() on the frozen part",
            stacklevel=5,
        )


def _is_frozen_norm(layer: nn.Module) -> bool:
    if not isinstance(layer, _BatchNorm) or layer.running_mean is None:
        return False
    own = [p for p in (layer.weight, layer.bias) if p is not None]
    return bool(own) and not any(p.requires_grad for p in own)
