"""Features: the values that enter the last linear layer of a network."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from ...errors import InputError


@dataclass(frozen=True)
class ForwardPass:
    """One pass through a network."""

    features: Tensor
    last_layer: nn.Linear
    """The one called last, whatever the order of definition."""
    logits: Tensor


def forward_pass(network: nn.Module, x: Tensor) -> ForwardPass:
    """The features of a batch and the logits made from them."""
    called: list[tuple[nn.Linear, Tensor]] = []

    def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, nn.Linear)
        called.append((layer, inputs[0]))

    handles = [m.register_forward_pre_hook(note) for m in network.modules() if isinstance(m, nn.Linear)]
    try:
        logits: Tensor = network(x)
    finally:
        for handle in handles:
            handle.remove()
    if not called:
        raise InputError("the network has no nn.Linear, so its features are not known; end it in one")
    layer, features = called[-1]
    if features.shape[:-1] != (len(x),):
        raise InputError(
            "the last nn.Linear of the network does not get one row per input; use a network that ends in one"
        )
    return ForwardPass(features, layer, logits)
