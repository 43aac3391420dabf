"""Minimal filtering gives what a convolution gives, there and back, for the layers that it is used for."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from autorecall.recall import kernels
from autorecall.recall.kernels import VECTORS, widest_vector, winograd_pays
from autorecall.recall.plan import Plan, Plans
from autorecall.recall.steps import Convolution, Pass
from autorecall.recall.winograd import SCRATCH, MinimalFiltering, Winograd
from autorecall.torch_state import limited_threads

pytestmark = pytest.mark.skipif(not winograd_pays(), reason="no compiled kernels, or no AVX2")


CHANNELS, PIXELS = st.integers(8, 50), st.integers(1, 22)
LARGE = st.integers(8, 22)  # two such images are never left to torch
SIZES = {"deep": CHANNELS, "wide": CHANNELS, "height": PIXELS, "width": PIXELS}


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
@given(images=st.integers(1, 7), bias=st.booleans(), channels_last=st.booleans(), **SIZES)
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


@pytest.mark.skipif(widest_vector() < VECTORS[-1], reason="the processor has no wider vectors")
@settings(deadline=None, max_examples=30)
@given(
    images=st.integers(2, 30),
    deep=CHANNELS.map(lambda n: n + 8),
    wide=CHANNELS.map(lambda n: n + 8),
    height=LARGE,
    width=LARGE,
)
def test_the_width_of_vectors_changes_no_bit(deep: int, wide: int, images: int, height: int, width: int) -> None:
    layer, x, g = world(deep, wide, images, height, width)
    layer, x, g = layer.float(), x.float().requires_grad_(), g.float()
    found, called = [], set[str]()

    def call(name: str, *given: object) -> object:
        called.add(name)
        return kernels.call(name, *given)  # type: ignore[arg-type]

    for vector in VECTORS:
        with pytest.MonkeyPatch.context() as patch, MinimalFiltering():
            patch.setattr("autorecall.recall.winograd.widest_vector", lambda vector=vector: vector)
            patch.setattr("autorecall.recall.winograd.call", call)
            y = layer(x)
            found.append((y.detach(), *torch.autograd.grad(y, (x, layer.weight), g)))
    assert {name.rpartition("_")[2] for name in called} == {str(vector) for vector in VECTORS}
    for narrow, widest in zip(*found, strict=True):
        assert torch.equal(narrow, widest)


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
    monkeypatch.setattr("autorecall.recall.winograd._transformed", None)  # would raise if it were called
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
    """Layers that it suits and that it does not suit, called in every way."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 12, 3, padding=1), nn.Conv2d(12, 8, 3, padding=1, bias=False)
        self.third = nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular")
        self.last = nn.Conv2d(8, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.third(F.relu(self.second(input=self.first(x)))))  # type: ignore[no-any-return]


def in_the_mode(network: nn.Module, x: Tensor) -> Tensor:
    """What a network gives inside the mode."""
    with MinimalFiltering():
        return network(x)  # type: ignore[no-any-return]


@pytest.fixture
def net() -> tuple[Net, Tensor]:
    torch.manual_seed(0)
    return Net().double(), torch.randn(5, 8, 9, 10, dtype=torch.float64)


def assert_almost(found: Tensor, expected: Tensor) -> None:
    """Equal but for rounding: not the same sums."""
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert not torch.equal(found, expected)


@torch.no_grad()
def test_inside_the_mode_networks_use_it(net: tuple[Net, Tensor]) -> None:
    network, x = net
    assert_almost(in_the_mode(network, x), network(x))
    small = x[:1, :, :4, :4]
    assert torch.equal(in_the_mode(network, small), network(small))


@torch.no_grad()
def test_weights_that_change_inside_the_mode_are_noticed(net: tuple[Net, Tensor]) -> None:
    network, x = net
    with MinimalFiltering():
        network(x)
        network.first.weight.data.mul_(2)
        found = network(x)
        other = torch.func.functional_call(network, {"first.weight": network.first.weight + 1}, x)
    assert_almost(found, network(x))
    network.first.weight += 1
    assert_almost(other, network(x))


def gradients(network: nn.Module, x: Tensor, filtered: bool) -> list[Tensor]:
    """Of a loss that is not linear: by the images, and by all weights."""
    x = x.clone().requires_grad_()
    y = in_the_mode(network, x) if filtered else network(x)
    return list(torch.autograd.grad(y.square().sum(), [x, *network.parameters()]))


def test_gradients_of_images_and_weights(net: tuple[Net, Tensor]) -> None:
    network, x = net
    for found, expected in zip(gradients(network, x, True), gradients(network, x, False), strict=True):
        assert largest(found - expected, expected) < 1e-12
        assert not torch.equal(found, expected)


@settings(deadline=None, max_examples=60)
@given(images=st.integers(1, 30), channels_last=st.booleans(), **SIZES)
def test_gradients_of_weights(deep: int, wide: int, images: int, height: int, width: int, channels_last: bool) -> None:
    layer, x, g = world(deep, wide, images, height, width, bias=True)
    if channels_last:
        layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    expected = torch.autograd.grad(layer(x), list(layer.parameters()), g)
    for dtype, error in ((torch.float64, 1e-12), (torch.float32, 1e-4)):
        layer.to(dtype)
        with MinimalFiltering():
            y = layer(x.to(dtype))
        for mine, theirs in zip(torch.autograd.grad(y, list(layer.parameters()), g.to(dtype)), expected, strict=True):
            assert mine.dtype == dtype
            assert largest(mine - theirs, theirs) < error


def test_only_what_is_asked_for_has_a_gradient(net: tuple[Net, Tensor]) -> None:
    network, x = net
    network.first.weight.requires_grad_(False)
    in_the_mode(network, x).sum().backward()  # type: ignore[no-untyped-call]
    assert network.first.weight.grad is None
    assert network.second.weight.grad is not None
    for p in network.parameters():
        p.requires_grad_(False)
    assert not in_the_mode(network, x).requires_grad


def test_gradients_of_gradients(net: tuple[Net, Tensor]) -> None:
    network, x = net
    found = []
    for forward in (network, lambda images: in_the_mode(network, images)):
        images = x.clone().requires_grad_()
        (once,) = torch.autograd.grad(forward(images).square().sum(), images, create_graph=True)
        found.append(torch.autograd.grad(once.square().sum(), [images, *network.parameters()]))
    for mine, theirs in zip(*found, strict=True):
        assert largest(mine - theirs, theirs) < 1e-12


def test_gradients_of_many_losses_at_once(net: tuple[Net, Tensor]) -> None:
    network, x = net
    found = []
    for forward in (network, lambda images: in_the_mode(network, images)):
        images = x.clone().requires_grad_()
        y = forward(images)
        many = torch.stack([torch.ones_like(y), y.detach()])
        found.append(torch.autograd.grad(y, [images, *network.parameters()], many, is_grads_batched=True))
    for mine, theirs in zip(*found, strict=True):
        assert largest(mine - theirs, theirs) < 1e-12


def test_transforms_of_functions_are_left_to_torch(net: tuple[Net, Tensor]) -> None:
    network, x = net
    parameters: dict[str, Tensor] = dict(network.named_parameters())

    def loss(of: dict[str, Tensor]) -> Tensor:
        y: Tensor = torch.func.functional_call(network, of, x)
        return y.square().sum()

    expected = torch.func.grad(loss)(parameters)
    with MinimalFiltering():
        found = torch.func.grad(loss)(parameters)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-12, atol=1e-12)


def test_weights_changed_before_the_way_back_are_noticed(net: tuple[Net, Tensor]) -> None:
    network, x = net
    y = in_the_mode(network, x.clone().requires_grad_())
    with torch.no_grad():
        network.second.weight += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()  # type: ignore[no-untyped-call]


def test_negative_views_are_left_to_torch(net: tuple[Net, Tensor]) -> None:
    network, x = net
    negative = torch.view_as_complex(torch.stack([x, x], -1)).conj().imag
    assert negative.is_neg()
    assert_same_in_the_mode(network.first, negative)
    weight = torch.view_as_complex(torch.stack([network.first.weight.detach()] * 2, -1)).conj().imag
    assert_same_in_the_mode(lambda images: network.first._conv_forward(images, weight, None), x)


def assert_same_in_the_mode(forward: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Or at least almost."""
    with MinimalFiltering():
        found = forward(x)
    torch.testing.assert_close(found, forward(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bias", [torch.ones(1), torch.ones(13), torch.ones(1, 12)])
def test_a_bias_of_another_shape_is_refused_as_by_torch(net: tuple[Net, Tensor], bias: Tensor) -> None:
    network, x = net
    network.first.bias = nn.Parameter(bias.double())
    with pytest.raises(RuntimeError, match="bias"):
        in_the_mode(network, x)


def test_results_are_laid_out_as_by_torch(net: tuple[Net, Tensor]) -> None:
    network, x = net
    for images in (x, x.contiguous(memory_format=torch.channels_last)):
        assert in_the_mode(network.first, images).stride() == network.first(images).stride()


def test_who_watches_torch_sees_convolutions(net: tuple[Net, Tensor]) -> None:
    network, x = net
    counts = []
    for forward in (network, lambda images: in_the_mode(network, images)):
        with FlopCounterMode(display=False) as counter:
            forward(x).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch uses it itself
def test_convolutions_beside_a_transform(net: tuple[Net, Tensor]) -> None:
    network, x = net
    scales = torch.arange(3.0, dtype=torch.float64)
    each = torch.func.vmap(lambda scale: network(x) * scale)
    with MinimalFiltering():
        found = each(scales)
    torch.testing.assert_close(found, each(scales))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))  # type: ignore[no-untyped-call]
        both = in_the_mode(network, dual), network(dual)
        tangents = [forward_ad.unpack_dual(y).tangent for y in both]  # type: ignore[no-untyped-call]
    torch.testing.assert_close(*tangents)


def test_scratch_memory_is_lent_to_one() -> None:
    like = torch.zeros(1)
    with SCRATCH.lend("weights", 10, like) as mine:
        mine.fill_(1)
        with SCRATCH.lend("weights", 10, like) as other:
            other.fill_(2)
        assert bool((mine == 1).all())
    with SCRATCH.lend("weights", 5, like) as again:
        assert len(again) == 5
        assert again.data_ptr() in (mine.data_ptr(), other.data_ptr())


def test_threads_do_not_share_memory(net: tuple[Net, Tensor]) -> None:
    network, x = net
    expected = gradients(network, x, True)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: gradients(network, x, True), range(40)):
            assert all(map(torch.equal, found, expected))


@torch.no_grad()
def test_what_it_cannot_do_is_left_to_torch(net: tuple[Net, Tensor]) -> None:
    network, x = net
    with pytest.raises(RuntimeError, match="channels"):
        in_the_mode(network, x[:, :7])
    with pytest.raises(RuntimeError, match="same"):
        in_the_mode(network, x.float())
    single = network.float()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(in_the_mode(single, x.float()), single(x.float()))
    each = torch.func.vmap(single, in_dims=0)
    images = x.float()[:, None]
    with MinimalFiltering():
        found = each(images)
    assert torch.equal(found, each(images))


@torch.no_grad()
def test_a_bias_may_be_laid_out_in_any_way(net: tuple[Net, Tensor]) -> None:
    network, x = net
    network.first.bias.data = torch.randn(24, dtype=torch.float64)[::2]  # type: ignore[union-attr]
    assert_almost(in_the_mode(network, x), network(x))
    layer, x, g = world(8, 8, 4, 8, 8, bias=True)
    layer.bias.data = torch.randn(16, dtype=torch.float64)[::2]  # type: ignore[union-attr]
    torch.testing.assert_close(there_and_back(Winograd(0, 1, layer), x, g)[0], layer(x))


@torch.no_grad()
def test_a_default_device_changes_nothing(net: tuple[Net, Tensor]) -> None:
    network, x = net
    expected = in_the_mode(network, x)
    try:
        torch.set_default_device("meta")
        found = in_the_mode(network, x)
    finally:
        torch.set_default_device(None)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("channels", [4, 8])
@pytest.mark.parametrize(("before", "after"), [(torch.float64, torch.float32), (torch.float32, torch.float64)])
def test_a_network_may_change_its_precision(channels: int, before: torch.dtype, after: torch.dtype) -> None:
    network = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.Flatten(), nn.Linear(64 * channels, 2))
    plans, x = Plans(), torch.randn(4, channels, 8, 8, dtype=torch.float64)
    for dtype in (before, after):
        network.to(dtype)
        plan = plans.of(network, x.to(dtype))
        assert plan is not None
        (logits,), _ = plan.forward(x.to(dtype), torch.full((4,), 0.25, dtype=dtype), 4)
        torch.testing.assert_close(logits, network(x.to(dtype)).detach(), rtol=1e-4, atol=1e-4)


def test_the_way_back_is_the_way_there() -> None:
    """Even if torch has other threads by then."""
    layer, x, g = world(8, 8, 4, 8, 8)
    expected, step = by_autograd(layer, x, g), Winograd(0, 1, layer)
    for there, back in ((3, 1), (1, 3)):
        run = Pass(2, torch.full((4,), 0.25), 4, statistics=False)
        run.values[0], run.gradients[1] = x, [g]
        with torch.no_grad():
            with limited_threads(there):
                step.forward(run)
            with limited_threads(back):
                step.backward(run)
        torch.testing.assert_close((run.value(1), run.gradient(0)), expected)


def test_weights_of_another_shape_are_left_to_torch() -> None:
    layer, x, _ = world(8, 8, 4, 8, 8)
    step = Winograd(0, 1, layer)
    layer.weight.data = torch.randn(9, 8, 5, 5, dtype=torch.float64)
    run = Pass(2, torch.full((4,), 0.25), 4, statistics=False)
    run.values[0] = x
    with torch.no_grad():
        step.forward(run)
        assert torch.equal(run.value(1), layer(x))
