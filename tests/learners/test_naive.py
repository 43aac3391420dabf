from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional as F

from autorecall import Naive, NaiveConfig
from autorecall.errors import ConfigError, DivergedError

from .worlds import assert_same, batch, conv, mlp


@pytest.mark.parametrize("make", [mlp, conv])
def test_observe_is_one_step_of_plain_sgd_a_batch(make: type[torch.nn.Module]) -> None:
    network = make()
    twin = copy.deepcopy(network)
    learner = Naive(network, NaiveConfig(learning_rate=0.3))
    for number in range(3):
        x, y = batch(number)
        loss = F.nll_loss(twin(x).log_softmax(1), y)
        with torch.no_grad():
            for p, gradient in zip(twin.parameters(), torch.autograd.grad(loss, list(twin.parameters())), strict=True):
                p.sub_(0.3 * gradient)
        assert_same(learner.observe(x, y), {"loss": loss.item()}, 1e-12)
        assert_same(network.state_dict(), twin.state_dict(), 1e-12)


def test_it_keeps_nothing_beside_the_network() -> None:
    learner = Naive(mlp())
    learner.observe(*batch(0))
    learner.boundary()
    assert (learner.memory().images, learner.memory().parameters, learner.memory().parameter_bytes) == (0, 0, 0)


@pytest.mark.parametrize("rate", [0.0, -0.1, float("nan"), float("inf")])
def test_impossible_rates_are_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match=f"learner.learning_rate is {rate}"):
        NaiveConfig(learning_rate=rate)


def test_divergence_is_noticed_and_named() -> None:
    learner = Naive(mlp().float(), NaiveConfig(learning_rate=1e30))
    x, y = batch(0)
    learner.observe(x.float(), y)
    with pytest.raises(DivergedError, match="the loss on the real batch became") as caught:
        learner.observe(x.float(), y)
    assert caught.value.term == "the loss on the real batch"
