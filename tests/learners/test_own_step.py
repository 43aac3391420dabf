"""`before_step` and `after_step`: recall for loops that take the step on the real batch themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from autorecall import ADI, ARM, ADIConfig, ARMConfig, InputError, LagConfig

from .worlds import OFTEN, Make, assert_same, batch, conv, mlp

SETTINGS = ARMConfig(recalled_images=6, ascent_steps=2, recall_rate=2.0, lag=OFTEN)


@pytest.mark.parametrize("make", [mlp, conv])
@pytest.mark.parametrize("lag", [OFTEN, LagConfig(), LagConfig("every", every=1, start=0)], ids=str)
def test_a_step_of_ones_own_in_between_ends_like_observe(make: Make, lag: LagConfig) -> None:
    whole, split = (ARM(make(), replace(SETTINGS, lag=lag), seed=3) for _ in range(2))
    for number in range(5):
        x, y = batch(number)
        expected = whole.observe(x, y)
        split.before_step(x, y)
        split.network.train()
        split.optimizer.zero_grad()
        loss = F.cross_entropy(split.network(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        split.optimizer.step()
        found = split.after_step(x, y)
        assert loss.item() == pytest.approx(expected.pop("loss"), rel=1e-12)
        assert found == pytest.approx(expected, rel=1e-9, nan_ok=True)
    assert_same(split.state_dict(), whole.state_dict(), 1e-12)


def test_gradients_and_modes_are_left_as_the_step_left_them() -> None:
    learner = ARM(mlp(), replace(SETTINGS, lag=LagConfig("every", every=1, start=0)))
    x, y = batch(0)
    learner.before_step(x, y)
    F.cross_entropy(learner.network(x), y).backward()  # type: ignore[no-untyped-call]
    before = [p.grad for p in learner.network.parameters()]
    values = [None if gradient is None else gradient.clone() for gradient in before]
    learner.network.eval()
    learner.after_step(x, y)
    after = [p.grad for p in learner.network.parameters()]
    assert all(mine is theirs for mine, theirs in zip(before, after, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(after, values, strict=True) if a is not None and b is not None)
    assert not learner.network.training


def test_outputs_are_added_before_the_step_if_they_may_be() -> None:
    whole, split = (ARM(mlp(), replace(SETTINGS, lag=LagConfig("every", every=1, start=0)), seed=3) for _ in range(2))
    whole.grows = split.grows = True
    x, y = batch(0)
    y[0] = 8
    whole.observe(x, y)
    split.before_step(x, y)
    split.optimizer.zero_grad()
    F.cross_entropy(split.network(x), y).backward()  # type: ignore[no-untyped-call]
    split.optimizer.step()
    split.after_step(x, y)
    assert split.predict(x).shape == (len(x), 9)
    assert_same(split.state_dict(), whole.state_dict(), 1e-12)


def test_it_is_the_teacher_from_before_the_step_that_recalls() -> None:
    learner = ADI(mlp(), ADIConfig(recalled_images=4, ascent_steps=1, lag=LagConfig("every", every=1, start=0)))
    x, y = batch(0)
    before = [p.detach().clone() for p in learner.network.parameters()]
    learner.before_step(x, y)
    with torch.no_grad():
        for p in learner.network.parameters():
            p.add_(1.0)
    learner.after_step(x, y)
    assert learner.teacher.network is not None
    assert all(torch.equal(a, b) for a, b in zip(learner.teacher.network.parameters(), before, strict=True))


def test_wrong_use_gets_one_sentence() -> None:
    learner = ARM(mlp(), SETTINGS)
    x, y = batch(0)
    with pytest.raises(InputError, match="after_step was called without before_step"):
        learner.after_step(x, y)
    with pytest.raises(InputError, match="expected one label per input"):
        learner.before_step(x, y[:1])
    learner.before_step(x, y)
    with pytest.raises(InputError, match="NaN"):
        learner.after_step(torch.full_like(x, float("nan")), y)
    with pytest.raises(InputError, match="without before_step"):
        learner.after_step(x, y)
