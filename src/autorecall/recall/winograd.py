"""3 × 3 convolutions, which are most of a residual network, with a quarter of the products: see _winograd.c.

The price is memory: a layer's weights are kept in transformed form, four times their size, once for the forward pass
and once for the gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .kernels import call, can_call, winograd_pays
from .steps import Convolution, Pass

VECTOR = 32  # bytes
BLOCK = 24  # tiles that are transformed together
FEWEST_TILES = 8  # with fewer, reading the transformed weights takes longer than reading the plain ones
MOST_THREADS = 2  # of torch: one thread of ours beats two of those; more have not been measured
USUAL = ((1, 1), (1, 1), (1, 1), 1)  # stride, padding, dilation and groups


class Winograd(Convolution):
    """A convolution that `suits`. Weights are read at the first pass after `renew`."""

    def __init__(self, source: int, target: int, layer: nn.Conv2d) -> None:
        super().__init__(source, target, layer)
        self.weights = _Weights()
        self.fresh = False

    @staticmethod
    def suits(layer: nn.Module) -> bool:
        """Whether minimal filtering can do what this layer does, and is fast on this processor."""
        if type(layer) is not nn.Conv2d or layer.padding_mode != "zeros" or not winograd_pays():
            return False
        settings = (layer.stride, layer.padding, layer.dilation, layer.groups)
        return settings == USUAL and _fits(layer.weight)

    def renew(self) -> None:
        self.fresh = False

    def forward(self, run: Pass) -> None:
        x, weight, bias = run.value(self.source), self.layer.weight, self.layer.bias
        if not _pays(x, weight, bias):
            super().forward(run)
            return
        if not self.fresh:
            self.weights.read(weight, back=True)
            self.fresh = True
        run.values[self.target] = self.weights.convolve(x, bias)
        run.filtered.add(self.target)

    def backward(self, run: Pass) -> None:
        if self.target in run.filtered:
            run.gradients[self.source].append(self.weights.convolve_back(run.gradient(self.target)))
        else:
            super().backward(run)


class MinimalFiltering(TorchFunctionMode):
    """Inside, all suitable convolutions are done this way, unless gradients are recorded."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, tuple[Tensor, _Weights]] = {}  # the tensor is held, so that no other gets its id

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.conv2d and not kwargs and len(args) == 7:
            x, weight, bias, *settings = args
            if tuple(settings) == USUAL and _is_plain(x, weight) and _pays(x, weight, bias):
                _, weights = self._known.setdefault(id(weight), (weight, _Weights()))
                weights.read(weight)
                return weights.convolve(x, bias)
        return func(*args, **kwargs)


class _Weights:
    """Transformed weights of a layer."""

    def __init__(self) -> None:
        self.seen: Tensor | None = None
        self.there = self.back = torch.empty(0)

    @torch.no_grad()
    def read(self, weight: Tensor, back: bool = False) -> None:
        """Transform the weights, unless they are as they were: a teacher's stay the same for a whole task."""
        if self.seen is not None and self.seen.dtype == weight.dtype and torch.equal(self.seen, weight):
            return
        self.seen = None  # whatever interrupts the transform
        self.there = _transformed(weight.permute(2, 3, 1, 0), self.there)
        if back:
            # The gradient of the input is a convolution with channels exchanged and kernels rotated by 180°.
            self.back = _transformed(weight.permute(2, 3, 0, 1).flip(0, 1), self.back)
        self.seen = weight.detach().clone()

    def convolve(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """The layer's outputs."""
        assert self.seen is not None
        return _convolve(x, self.there, bias, *self.seen.shape[:2])

    def convolve_back(self, g: Tensor) -> Tensor:
        """The gradient of the layer's inputs, from that of its outputs."""
        assert self.seen is not None
        return _convolve(g, self.back, None, self.seen.shape[1], self.seen.shape[0])


def _fits(weight: Tensor) -> bool:
    """Whether kernels are 3 × 3 and both numbers of channels fill a vector."""
    return weight.shape[2:] == (3, 3) and min(weight.shape[:2]) >= VECTOR // weight.element_size()


def _pays(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether these tensors can be filtered, and that is faster: enough tiles, and few of them past the border."""
    tensors = [x, weight] if bias is None else [x, weight, bias]
    if x.dim() != 4 or weight.dim() != 4 or not _fits(weight) or x.shape[1] != weight.shape[1] or not can_call(x):
        return False
    if any(not of.is_cpu or of.dtype != x.dtype for of in tensors) or not winograd_pays():
        return False
    images, _, height, width = x.shape
    tiles = images * -(-height // 4) * -(-width // 4)
    few_threads = torch.get_num_threads() <= MOST_THREADS
    return few_threads and tiles >= FEWEST_TILES and 16 * tiles <= 2 * images * height * width


def _is_plain(x: object, weight: object) -> bool:
    """Whether these are tensors with memory, and nothing is being recorded or compiled."""
    if type(x) is not Tensor or type(weight) not in (Tensor, nn.Parameter):
        return False
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
        return False
    try:
        return bool(x.data_ptr())
    except RuntimeError:  # inside a transform of torch.func
        return False


def _transformed(weight: Tensor, memory: Tensor) -> Tensor:
    """From (3, 3, channels in, channels out), into memory that is used again."""
    *_, deep, wide = weight.shape
    size = 36 * deep * _whole_vectors(wide, weight)
    if memory.shape != (size,) or memory.dtype != weight.dtype:
        memory = weight.new_zeros(size)
    call("winograd_weights", (weight.contiguous(), memory), deep, wide)
    return memory


def _convolve(x: Tensor, transformed: Tensor, bias: Tensor | None, wide: int, deep: int) -> Tensor:
    images, _, height, width = x.shape
    assert (x.shape[1], transformed.dtype) == (deep, x.dtype)
    assert len(transformed) == 36 * deep * _whole_vectors(wide, x)
    x = x.contiguous(memory_format=torch.channels_last)
    bias = None if bias is None else bias.contiguous()
    shape = (images, wide, height, width)
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    work = x.new_empty(deep + wide + 36 * BLOCK * (deep + _whole_vectors(wide, x)))
    call("winograd", (x, transformed, bias, y, work), images, height, width, deep, wide, BLOCK)
    return y


def _whole_vectors(channels: int, like: Tensor) -> int:
    """Numbers in as many vectors as these channels need."""
    lanes = VECTOR // like.element_size()
    return -(-channels // lanes) * lanes
