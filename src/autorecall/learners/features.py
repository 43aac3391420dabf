"""What a network sees in an input: the values that enter its last linear layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from ..errors import InputError


@dataclass(frozen=True)
class Seen:
    """One pass through a network."""

    features: Tensor
    layer: nn.Linear
    """That which was called last, whatever the order in which layers were defined."""
    logits: Tensor


def see(network: nn.Module, x: Tensor) -> Seen:
    """The features of a batch and the logits made of them."""
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
        raise InputError("the network has no nn.Linear, so it is not known what its features are; end it in one")
    layer, features = called[-1]
    if features.shape[:-1] != (len(x),):
        raise InputError(
            "the last nn.Linear of the network is not given one row an input; use a network that ends in it"
        )
    return Seen(features, layer, logits)
