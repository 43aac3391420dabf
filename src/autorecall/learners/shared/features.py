"""Features: the values that enter the last linear layer of a network."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...errors import InputError
from ...networks.fixed import FixedFeatures
from .modes import evaluating


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


def features_and_logits(network: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The fixed features of a batch, or else those of the last layer, and the logits made from them."""
    if isinstance(network, FixedFeatures):
        features = network.features(x)
        return features, network.classify(features)
    passed = forward_pass(network, x)
    return passed.features, passed.logits


@torch.no_grad()
def last_linear(network: nn.Module, x: Tensor) -> nn.Linear:
    """The linear layer that a network ends in, to be solved for, or an InputError."""
    with evaluating(network):
        passed = forward_pass(network, x)
        made = passed.last_layer(passed.features)
    if made.shape != passed.logits.shape or not torch.allclose(made, passed.logits, equal_nan=True):
        raise InputError("the logits are not those of the last nn.Linear alone; use a network that ends in one")
    if "weight" not in passed.last_layer._parameters:
        raise InputError(
            "the weights of the last nn.Linear are computed from others, as weight norm does, and cannot be set; use a "
            "plain one"
        )
    if passed.last_layer.bias is None:
        raise InputError("the last nn.Linear of the network has no bias, which the discriminant needs; give it one")
    return passed.last_layer
