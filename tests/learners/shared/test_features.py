"""What a network sees in an input is what enters the linear layer that it calls last."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from autorecall import SLDA, BoundaryConfig, ICaRL, ICaRLConfig, InputError, Learner
from autorecall.learners.shared.features import last_linear

from ..worlds import CLASSES, assert_same, batch, observe


class Shuffled(nn.Module):
    """Its last layer is the first that it defines."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first = nn.Linear(8, CLASSES), nn.Linear(60, 8)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.first(x.flatten(1)).relu())
        return logits


def icarl(network: nn.Module) -> Learner:
    return ICaRL(network, ICaRLConfig(9, steps_per_batch=1, tasks=BoundaryConfig("every", every=2)))


@pytest.mark.parametrize("make", [SLDA, icarl])
def test_last_is_the_layer_that_is_called_last(make: Callable[[nn.Module], Learner]) -> None:
    network = Shuffled().double()
    ordered = nn.Sequential(nn.Flatten(), copy.deepcopy(network.first), nn.ReLU(), copy.deepcopy(network.last))
    one, other = make(network), make(ordered)
    observe(one, 6)
    observe(other, 6)
    assert torch.equal(one.predict(batch(9)[0]), other.predict(batch(9)[0]))
    assert_same(one.memory().parameters, other.memory().parameters)


@pytest.mark.parametrize("normed", [nn.utils.spectral_norm, nn.utils.parametrizations.weight_norm])
def test_a_last_layer_whose_weights_cannot_be_set_is_refused(normed: Callable[[nn.Module], nn.Module]) -> None:
    network = nn.Sequential(nn.Flatten(), normed(nn.Linear(4, 3)))
    with pytest.raises(InputError, match=r"^the weights of the last nn\.Linear are computed from others"):
        last_linear(network, torch.rand(2, 4))
