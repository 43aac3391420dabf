from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor

from autorecall import LagConfig, LwF, LwFConfig
from autorecall.errors import ConfigError, DivergedError

from .worlds import assert_same, batch, conv, mlp, teacher_of


def descend(network: torch.nn.Module, loss: Tensor, rate: float) -> None:
    parameters = list(network.parameters())
    with torch.no_grad():
        for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            p.sub_(rate * gradient)


@pytest.mark.parametrize("make", [mlp, conv])
def test_observe_is_a_step_on_labels_then_one_on_the_teachers_answers(make: type[torch.nn.Module]) -> None:
    """The second loss is the mean over the batch of Σ p·log(p/p'), from `start` on, with the teacher in train mode."""
    network = make()
    student = copy.deepcopy(network)
    learner = LwF(network, LwFConfig(0.2, weight=1.7, lag=LagConfig("every", every=2, start=2)))
    teacher = student
    for number in range(6):
        x, y = batch(number)
        if number % 2 == 0:
            teacher = copy.deepcopy(student)
        outputs = student(x).softmax(1)
        loss = -torch.stack([outputs[i, y[i]].log() for i in range(len(x))]).sum() / len(x)
        descend(student, loss, 0.2)
        expected = {"loss": loss.item(), "distillation": math.nan}
        if number >= 2:
            p = teacher(x).softmax(1).detach()
            kl = (p * (p / student(x).softmax(1)).log()).sum() / len(x)
            descend(student, 1.7 * kl, 0.2)
            expected["distillation"] = 1.7 * kl.item()
        assert_same(learner.observe(x, y), expected, 1e-12)
        assert_same(network.state_dict(), student.state_dict(), 1e-12)
        assert_same(teacher_of(learner), dict(teacher.state_dict()), 1e-12)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["learning_rate", "weight"])
def test_impossible_settings_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"learner.{name} is {value}"):
        LwFConfig(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "term"),
    [(LwFConfig(1e30), "the loss on the real batch"), (LwFConfig(weight=3e38), "the distillation loss")],
)
def test_divergence_is_noticed_and_named(config: LwFConfig, term: str) -> None:
    learner = LwF(mlp().float(), config)
    x, y = batch(0)
    learner.observe(x.float(), y)
    learner.boundary()
    with pytest.raises(DivergedError) as caught:
        learner.observe(50 * x.float(), y)
    assert caught.value.term == term
