"""Minimal filtering gives what a convolution gives, there and back, for the layers that it is used for."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from autorecall.recall.kernels import winograd_pays
from autorecall.recall.plan import Plan, Plans
from autorecall.recall.steps import Convolution, Pass
from autorecall.recall.winograd import Winograd, minimal_filtering
from autorecall.torch_state import limited_threads

pytestmark = pytest.mark.skipif(not winograd_pays(), reason="no compiled kernels, or no AVX2")


def there_and_back(step: Convolution, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """What a step makes of images, and of a gradient."""
    run = Pass(2, torch.ones(len(x)) / len(x), len(x), statistics=False)
    run.values[0] = x
    with torch.no_grad():
        step.forward(run)
        run.gradients[1] = [g]
        step.backward(run)
    return run.value(1), run.gradient(0)


def by_autograd(layer: nn.Conv2d, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = layer(x)
    return y.detach(), torch.autograd.grad(y, x, g)[0]


def world(
    deep: int, wide: int, images: int, height: int, width: int, bias: bool = False
) -> tuple[nn.Conv2d, Tensor, Tensor]:
    torch.manual_seed(deep * wide + height)
    layer = nn.Conv2d(deep, wide, 3, padding=1, bias=bias, dtype=torch.float64)
    shapes = (images, deep, height, width), (images, wide, height, width)
    x, g = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    return layer, x, g


def largest(error: Tensor, beside: Tensor) -> float:
    return float(error.abs().max() / beside.abs().max())


@settings(deadline=None, max_examples=60)
@given(
    deep=st.integers(8, 50),
    wide=st.integers(8, 50),
    images=st.integers(1, 7),
    height=st.integers(1, 22),
    width=st.integers(1, 22),
    bias=st.booleans(),
    channels_last=st.booleans(),
)
def test_it_gives_what_a_convolution_gives(
    deep: int, wide: int, images: int, height: int, width: int, bias: bool, channels_last: bool
) -> None:
    layer, x, g = world(deep, wide, images, height, width, bias)
    if channels_last:
        x, g = (of.contiguous(memory_format=torch.channels_last) for of in (x, g))
    assert Winograd.suits(layer)
    expected = by_autograd(layer, x, g)
    for mine, theirs in zip(there_and_back(Winograd(0, 1, layer), x, g), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
    single = there_and_back(Winograd(0, 1, copy.deepcopy(layer).float()), x.float(), g.float())
    for rounded, theirs in zip(single, expected, strict=True):
        assert largest(rounded - theirs, theirs) < 3e-5


@pytest.mark.parametrize("channels", [20, 40, 80, 160])
def test_the_layers_of_the_paper(channels: int) -> None:
    layer, x, g = world(channels, channels, 10, 640 // channels, 640 // channels)
    single = there_and_back(Winograd(0, 1, copy.deepcopy(layer).float()), x.float(), g.float())
    for rounded, theirs in zip(single, by_autograd(layer, x, g), strict=True):
        assert largest(rounded - theirs, theirs) < 3e-5


def test_weights_are_read_once_per_ascent() -> None:
    layer, x, g = world(8, 9, 4, 8, 8)
    step, before = Winograd(0, 1, layer), by_autograd(layer, x, g)
    there_and_back(step, x, g)
    layer.weight.data.mul_(2)  # no version of the tensor counts this
    torch.testing.assert_close(there_and_back(step, x, g), before)
    step.renew()
    torch.testing.assert_close(there_and_back(step, x, g), by_autograd(layer, x, g))


def test_weights_that_are_the_same_are_not_transformed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x, g = world(8, 9, 4, 8, 8)
    step = Winograd(0, 1, layer)
    expected = there_and_back(step, x, g)
    step.renew()
    monkeypatch.setattr("autorecall.recall.winograd._transformed", None)
    torch.testing.assert_close(there_and_back(step, x, g), expected)


def test_plans_have_it_where_it_suits() -> None:
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1), nn.Flatten(), nn.Linear(512, 2)
    )
    plan = Plan.of(network, torch.Size((3, 8, 8)))
    assert plan is not None
    assert [type(step) for step in plan.steps][:2] == [Convolution, Winograd]


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(8, 8, 5, padding=2),
        nn.Conv2d(8, 8, 3),
        nn.Conv2d(8, 8, 3, padding=1, stride=2),
        nn.Conv2d(8, 8, 3, padding=(1, 2)),
        nn.Conv2d(8, 8, 3, padding=2, dilation=2),
        nn.Conv2d(8, 8, 3, padding=1, groups=2),
        nn.Conv2d(7, 8, 3, padding=1),
        nn.Conv2d(8, 7, 3, padding=1),
    ],
)
def test_what_does_not_suit(layer: nn.Conv2d) -> None:
    assert not Winograd.suits(layer)


def test_many_threads_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autorecall.recall.winograd.call", None)
    layer, x, g = world(8, 8, 4, 8, 8)
    with limited_threads(3):
        torch.testing.assert_close(there_and_back(Winograd(0, 1, layer), x, g), by_autograd(layer, x, g))


def test_few_tiles_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autorecall.recall.winograd.call", None)
    for images, size in ((1, 8), (9, 1), (20, 5)):
        layer, x, g = world(8, 8, images, size, size)
        torch.testing.assert_close(there_and_back(Winograd(0, 1, layer), x, g), by_autograd(layer, x, g))


def test_a_learner_sees_its_own_steps() -> None:
    """A plan that is asked for again reads the weights as they are then."""
    layer = nn.Conv2d(8, 8, 3, padding=1)
    network = nn.Sequential(layer, nn.Flatten(), nn.Linear(512, 2))
    plans, x = Plans(), torch.randn(4, 8, 8, 8)
    for _ in range(2):
        plan = plans.of(network, x)
        assert plan is not None
        (logits,), _ = plan.forward(x, torch.full((4,), 0.25), 4)
        torch.testing.assert_close(logits, network(x).detach(), rtol=1e-4, atol=1e-4)
        with torch.no_grad():
            layer.weight += 1


def test_what_is_not_finite_stays_so() -> None:
    layer, x, g = world(8, 8, 4, 8, 8)
    x[0, 3, 5, 2] = torch.nan
    y, _ = there_and_back(Winograd(0, 1, layer), x, g)
    assert y[0, :, 4:7, 1:4].isnan().all()
    assert y[1:].isfinite().all()


class Net(nn.Module):
    """A layer that it suits, one that it does not suit, and one that somebody else changed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(8, 12, 3, padding=1),
            nn.Conv2d(12, 8, 3, padding=1, padding_mode="circular"),
        )
        self.third = nn.Conv2d(8, 8, 3, padding=1)
        self.third.forward = lambda x: 2 * x  # type: ignore[assignment, method-assign]

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.second(self.first(x)))  # type: ignore[no-any-return]


def test_a_network_is_tested_with_it() -> None:
    torch.manual_seed(0)
    network, x = Net().double(), torch.randn(5, 8, 9, 10, dtype=torch.float64)
    found = dict(vars(network.first)), vars(network.third)["forward"]
    with torch.no_grad():
        expected = network(x)
        with minimal_filtering(network):
            tested = network(x)
            assert torch.equal(network(x), tested)
            assert torch.equal(network(x[:1, :, :1]), network(x[:1, :, :1]))
    torch.testing.assert_close(tested, expected, rtol=1e-12, atol=1e-12)
    assert not torch.equal(tested, expected)
    assert (dict(vars(network.first)), vars(network.third)["forward"]) == found


def test_it_is_not_used_where_gradients_are_wanted() -> None:
    torch.manual_seed(0)
    network, x = Net(), torch.randn(5, 8, 9, 10)
    expected = network(x)
    with minimal_filtering(network):
        found = network(x)
    assert torch.equal(found, expected)
    assert found.requires_grad


def test_nothing_is_left_if_a_test_fails() -> None:
    network = Net()
    with pytest.raises(RuntimeError), minimal_filtering(network), torch.no_grad():
        network(torch.randn(5, 7, 9, 10))
    assert "forward" not in vars(network.first)
