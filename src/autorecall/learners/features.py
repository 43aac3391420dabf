"""What a network sees in an input: the values that enter its last linear layer."""

from __future__ import annotations

from torch import Tensor, nn

from ..errors import InputError


def last_linear(network: nn.Module) -> nn.Linear:
    """The layer that makes logits of features."""
    layers = [module for module in network.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise InputError("the network has no nn.Linear, so it is not known what its features are; end it in one")
    return layers[-1]


def features_and_logits(network: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The features of a batch and the logits made of them."""
    entered: list[Tensor] = []
    handle = last_linear(network).register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
    try:
        logits: Tensor = network(x)
    finally:
        handle.remove()
    if not entered or entered[-1].shape[:-1] != (len(x),):
        raise InputError(
            "the last nn.Linear of the network is not given one row an input; use a network that ends in it"
        )
    return entered[-1], logits
