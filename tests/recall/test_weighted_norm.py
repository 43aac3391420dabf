"""Batch-norm of images that count: against torch's own on literal copies, and the compiled form against the plain."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from autorecall import precision
from autorecall.errors import InputError
from autorecall.recall import kernels, weighted_norm
from autorecall.recall.weighted_norm import BatchNorm, weighted_batch_norm

from .worlds import assert_close, of_copies

COUNTS = torch.tensor([1, 4, 2, 1, 3])
TOTAL = 11
CHANNELS = 3
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5}
compiled_only = pytest.mark.skipif(
    not kernels.can_call(torch.zeros(1)), reason="the package was installed without a compiler"
)


def channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


@dataclass(frozen=True)
class Kind:
    """A batch-norm class, the shape of one image's features, and their layout in memory."""

    layer: type[BatchNorm]
    pixels: tuple[int, ...] = ()
    laid_out: Callable[[Tensor], Tensor] = Tensor.contiguous

    def inputs(self, seed: int, dtype: torch.dtype, images: int = len(COUNTS), channels: int = CHANNELS) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(images, channels, *self.pixels, generator=generator, dtype=torch.float64) * 1.7 + 2
        return self.laid_out(x.to(dtype))


KINDS = {
    "1d": Kind(nn.BatchNorm1d),
    "1d along a line": Kind(nn.BatchNorm1d, (7,)),
    "2d": Kind(nn.BatchNorm2d, (4, 5)),
    "2d channels last": Kind(nn.BatchNorm2d, (4, 5), channels_last),
    "2d one pixel": Kind(nn.BatchNorm2d, (1, 1), channels_last),
    "3d": Kind(nn.BatchNorm3d, (2, 3, 2)),
}
COMPILED = ("1d", "2d channels last", "2d one pixel")
SETTINGS: dict[str, Callable[[type[BatchNorm], int], BatchNorm]] = {
    "usual": lambda layer, channels: layer(channels),
    "large momentum": lambda layer, channels: layer(channels, eps=0.01, momentum=0.3),
    "cumulative": lambda layer, channels: layer(channels, momentum=None),
    "no running statistics": lambda layer, channels: layer(channels, track_running_stats=False),
    "not affine": lambda layer, channels: layer(channels, affine=False),
    "bare": lambda layer, channels: layer(channels, affine=False, track_running_stats=False),
}


def layer_of(kind: Kind, setting: str, dtype: torch.dtype, channels: int = CHANNELS) -> BatchNorm:
    """A layer with values of its own in every parameter and buffer."""
    layer = SETTINGS[setting](kind.layer, channels)
    generator = torch.Generator().manual_seed(1)
    for value in (*layer.parameters(), layer.running_mean, layer.running_var):
        if value is not None:
            value.detach().copy_(torch.rand(value.shape, generator=generator) + 0.5)
    return layer.to(dtype)


def shares(dtype: torch.dtype) -> Tensor:
    return COUNTS.to(dtype) / TOTAL


@pytest.mark.usefixtures("installation")
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", KINDS)
def test_images_that_count_are_normalised_as_their_copies_by_torch(name: str, setting: str, dtype: torch.dtype) -> None:
    """Outputs, all gradients and what is remembered, over three batches; copies get gradients of their own."""
    kind, tolerance = KINDS[name], TOLERANCES[dtype]
    ours = layer_of(kind, setting, dtype)
    theirs = copy.deepcopy(ours)
    of_copy = of_copies(COUNTS)
    for number in range(3):
        x = kind.inputs(number, dtype).requires_grad_()
        literal = x.detach().clone().requires_grad_()
        y, expected = weighted_batch_norm(ours, shares(dtype), TOTAL, x), theirs(literal[of_copy])
        assert_close(y[of_copy], expected, tolerance)

        upstream = torch.randn(expected.shape, dtype=dtype)
        expected.backward(upstream)
        y.backward(torch.zeros_like(y).index_add(0, of_copy, upstream))  # type: ignore[no-untyped-call]
        assert_close(x.grad, literal.grad, tolerance)
        for mine, torchs in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert_close(mine.grad, torchs.grad, tolerance)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert_close(dict(ours.state_dict()), dict(theirs.state_dict()), tolerance)


@pytest.mark.usefixtures("installation")
@pytest.mark.parametrize("setting", ["usual", "not affine"])
@pytest.mark.parametrize("name", KINDS)
def test_gradients_are_those_of_finite_differences(name: str, setting: str) -> None:
    kind = KINDS[name]
    layer = layer_of(kind, setting, torch.float64, channels=2)
    x = kind.inputs(0, torch.float64, images=2, channels=2)
    weights = torch.tensor([0.25, 0.75], dtype=torch.float64)

    def normalised(x: Tensor, *_: Tensor) -> Tensor:
        return weighted_batch_norm(layer, weights, 4, x) ** 2  # of one power, the gradients to x would add up to zero

    assert torch.autograd.gradcheck(normalised, (x.requires_grad_(), *layer.parameters()))


@pytest.mark.usefixtures("installation")
@pytest.mark.parametrize("setting", ["usual", "no running statistics"])
def test_layer_in_eval_mode_remembers_nothing(setting: str) -> None:
    kind = KINDS["2d channels last"]
    layer = layer_of(kind, setting, torch.float64)
    before = copy.deepcopy(layer.state_dict())
    weighted_batch_norm(layer.eval(), shares(torch.float64), TOTAL, kind.inputs(0, torch.float64))
    assert_close(dict(layer.state_dict()), dict(before), 0)


@pytest.mark.usefixtures("installation")
@pytest.mark.parametrize("name", ["1d", "2d one pixel"])
def test_a_single_value_per_channel_is_refused_as_torch_refuses_it(name: str) -> None:
    kind = KINDS[name]
    layer, x = layer_of(kind, "usual", torch.float64), kind.inputs(0, torch.float64, images=1)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel") as torchs:
        copy.deepcopy(layer)(x)
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(ValueError, match="Expected more than 1 value per channel") as ours:
        weighted_batch_norm(layer, torch.ones(1, dtype=torch.float64), 1, x)
    assert str(tuple(x.shape)) in str(ours.value)
    assert str(list(x.shape)) in str(torchs.value)
    assert_close(dict(layer.state_dict()), dict(before), 0)


@pytest.mark.usefixtures("installation")
@pytest.mark.parametrize("name", ["1d", "2d one pixel"])
def test_a_single_image_that_counts_twice_is_not_refused(name: str) -> None:
    kind = KINDS[name]
    ours, x = layer_of(kind, "usual", torch.float64), kind.inputs(0, torch.float64, images=1)
    theirs = copy.deepcopy(ours)
    found = weighted_batch_norm(ours, torch.ones(1, dtype=torch.float64), 2, x)
    assert_close(found, theirs(torch.cat([x, x]))[:1], 1e-12)
    assert_close(dict(ours.state_dict()), dict(theirs.state_dict()), 1e-12)


@compiled_only
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("channels", [1, 3, 17, 20, 160])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_form_agrees_with_the_one_in_torch(
    name: str, dtype: torch.dtype, channels: int, affine: bool, momentum: float | None
) -> None:
    kind, results = KINDS[name], []
    for form in (weighted_norm._Compiled, weighted_norm._InTorch):
        layer = kind.layer(channels, affine=affine, momentum=momentum).to(dtype)
        torch.manual_seed(3)
        for parameter in layer.parameters():
            nn.init.normal_(parameter)
        for number in range(2):
            x = kind.inputs(number, dtype, channels=channels).requires_grad_()
            values = TOTAL * x[0, 0].numel()
            y = form.apply(x, layer.weight, layer.bias, shares(dtype), layer, values)  # type: ignore[no-untyped-call]
            y.backward(kind.laid_out(torch.randn(y.shape, dtype=dtype)))
        gradients = {key: parameter.grad for key, parameter in layer.named_parameters()}
        results.append({"y": y.detach(), "x": x.grad} | gradients | dict(layer.state_dict()))
    found, expected = results
    assert_close(found, expected, TOLERANCES[dtype])
    assert found["num_batches_tracked"] == 2


@compiled_only
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", ["1d", "2d channels last"])
def test_compiled_form_takes_gradients_in_another_layout(name: str, dtype: torch.dtype) -> None:
    """As a layer that prefers the other layout, or a plain sum, hands them back."""
    kind = KINDS[name]
    x = kind.inputs(0, dtype).requires_grad_()
    y = weighted_batch_norm(layer_of(kind, "usual", dtype), shares(dtype), TOTAL, x)
    for upstream in (torch.randn(y.shape, dtype=dtype), torch.ones((), dtype=dtype).expand(y.shape)):
        found, expected = (
            torch.autograd.grad(y, x, gradient, retain_graph=True)[0]
            for gradient in (upstream, kind.laid_out(upstream))
        )
        assert torch.equal(found, expected)


def form_used(kind: Kind, dtype: torch.dtype) -> str:
    x = kind.inputs(0, dtype).requires_grad_()
    y = weighted_batch_norm(layer_of(kind, "usual", dtype), shares(dtype), TOTAL, x)
    assert y.dtype == dtype
    return type(y.grad_fn).__name__.removesuffix("Backward")


@compiled_only
@pytest.mark.parametrize("name", KINDS)
def test_compiled_form_is_used_where_the_channels_of_a_pixel_lie_side_by_side(name: str) -> None:
    assert form_used(KINDS[name], torch.float32) == ("_Compiled" if name in COMPILED else "_InTorch")


@pytest.mark.usefixtures("without_kernels")
@pytest.mark.parametrize("name", KINDS)
def test_without_kernels_torch_does_it_all(name: str) -> None:
    assert form_used(KINDS[name], torch.float32) == "_InTorch"


@pytest.mark.parametrize("name", KINDS)
def test_numbers_that_torch_alone_can_do_are_left_to_torch(name: str) -> None:
    if not precision.works(torch.bfloat16):
        pytest.skip("bfloat16 does not work on this machine")
    assert form_used(KINDS[name], torch.bfloat16) == "_InTorch"


@pytest.mark.usefixtures("installation")
def test_long_sums_stay_exact_in_single_precision() -> None:
    """A mean far from zero, a small spread and many pixels: where a variance by E[x²] − E[x]² is lost."""
    kind = Kind(nn.BatchNorm2d, (64, 64), channels_last)
    x = kind.inputs(0, torch.float64) * 0.01 + 30
    single, double = layer_of(kind, "usual", torch.float32), layer_of(kind, "usual", torch.float64)
    found = weighted_batch_norm(single, shares(torch.float32), TOTAL, x.float())
    expected = weighted_batch_norm(double, shares(torch.float64), TOTAL, x.float().double())
    assert_close(found.double(), expected, 2e-3)
    assert_close(single.running_var, double.float().running_var, 1e-4)


@pytest.mark.usefixtures("installation")
def test_layer_with_a_weight_but_no_bias_learns() -> None:
    layer = layer_of(KINDS["1d"], "usual", torch.float64)
    layer.register_parameter("bias", None)
    x = KINDS["1d"].inputs(0, torch.float64).requires_grad_()
    weighted_batch_norm(layer, shares(torch.float64), TOTAL, x).square().sum().backward()  # type: ignore[no-untyped-call]
    assert layer.weight.grad is not None


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("images", [3, 7])
def test_shares_of_other_images_are_refused(name: str, images: int) -> None:
    """As of a network that folds patches into the batch."""
    kind = KINDS[name]
    x = kind.inputs(0, torch.float64, images=images)
    with pytest.raises(InputError, match=rf"got {images} inputs for 5 images.*copies = 'keep'"):
        weighted_batch_norm(layer_of(kind, "usual", torch.float64), shares(torch.float64), TOTAL, x)


@pytest.mark.parametrize("name", KINDS)
def test_shares_of_another_precision_are_taken(name: str) -> None:
    kind = KINDS[name]
    x = kind.inputs(0, torch.float64)
    found, expected = (
        weighted_batch_norm(layer_of(kind, "usual", torch.float64), shares(dtype), TOTAL, x)
        for dtype in (torch.float32, torch.float64)
    )
    assert_close(found, expected, 1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_layer_that_does_not_count_its_batches_is_served(name: str) -> None:
    layer = layer_of(KINDS[name], "usual", torch.float64)
    layer.num_batches_tracked = None
    assert layer.running_mean is not None
    before = layer.running_mean.clone()
    weighted_batch_norm(layer, shares(torch.float64), TOTAL, KINDS[name].inputs(0, torch.float64))
    assert not torch.equal(layer.running_mean, before)


def test_batch_norm_may_be_more_precise_than_its_inputs() -> None:
    """As in torch: the output is as precise as the input, and statistics as the layer."""
    ours = nn.BatchNorm2d(3)
    theirs = copy.deepcopy(ours)
    x = torch.rand(4, 3, 5, 5).to(torch.bfloat16)
    mine, expected = weighted_batch_norm(ours, torch.full((4,), 0.25), 4, x), theirs(x)
    assert mine.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(mine, expected, rtol=0, atol=0.02)
    assert ours.running_var is not None
    torch.testing.assert_close(ours.running_var, theirs.running_var)
