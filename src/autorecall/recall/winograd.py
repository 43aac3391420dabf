"""Convolutions of 3 × 3, which are nearly all of a residual network, with a quarter of the products: see _winograd.c.

What it costs is memory: a layer's weights are kept transformed, for the way there and the way back, each four times as
large as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .kernels import call, can_call, winograd_pays
from .steps import Convolution, Pass

VECTOR = 32  # bytes
BLOCK = 24  # tiles that are transformed together
FEWEST_TILES = 8  # with fewer, the transformed weights take longer to read than the plain ones
MOST_THREADS = 2  # of torch: one thread of ours is quicker than two of those, and has not been measured beside more


@contextmanager
def minimal_filtering(network: nn.Module) -> Iterator[None]:
    """Inside, convolutions that it suits are done so, unless gradients are wanted. Weights must stay as they are."""
    layers = [layer for layer in network.modules() if type(layer) is nn.Conv2d and "forward" not in vars(layer)]
    layers = [layer for layer in layers if layer.padding_mode == "zeros" and Winograd.suits(layer)]
    for layer in layers:
        # On the instance, not the class: it leaves no trace.
        vars(layer)["forward"] = _Filtered(layer)
    try:
        yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)


class _Filtered:
    """The forward pass of a layer, whose weights are transformed when they are first needed."""

    def __init__(self, layer: nn.Conv2d) -> None:
        self.layer = layer
        self.transformed: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        weight, bias = self.layer.weight, self.layer.bias
        usual = type(x) is Tensor and x.dim() == 4 and x.dtype == weight.dtype and x.shape[1] == weight.shape[1]
        here = can_call(x) and weight.is_cpu
        wanted = torch.is_grad_enabled() or torch.is_autocast_enabled("cpu")
        if wanted or not (usual and here and _pays(x)):
            return nn.Conv2d.forward(self.layer, x)
        if self.transformed is None:
            self.transformed = _transformed(weight.permute(2, 3, 1, 0), torch.empty(0))
        return _convolve(x, self.transformed, bias, self.layer.out_channels)


class Winograd(Convolution):
    """A convolution that `suits`; its weights are transformed at the first pass after `renew`."""

    def __init__(self, source: int, target: int, layer: nn.Conv2d) -> None:
        super().__init__(source, target, layer)
        self.seen: Tensor | None = None
        self.there = self.back = torch.empty(0)
        self.fresh = False

    @staticmethod
    def suits(layer: nn.Conv2d) -> bool:
        """Whether it is 3 × 3 with a border of one, on channels that fill a vector."""
        usual = (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.groups)
        least = VECTOR // layer.weight.element_size()
        fills = min(layer.in_channels, layer.out_channels) >= least
        return winograd_pays() and usual == ((3, 3), (1, 1), (1, 1), (1, 1), 1) and fills

    def renew(self) -> None:
        self.fresh = False

    def forward(self, run: Pass) -> None:
        x = run.value(self.source)
        if not _pays(x):
            super().forward(run)
            return
        self._read_weights()
        run.values[self.target] = _convolve(x, self.there, self.layer.bias, self.layer.out_channels)

    def backward(self, run: Pass) -> None:
        g = run.gradient(self.target)
        if not _pays(g):
            super().backward(run)
            return
        run.gradients[self.source].append(_convolve(g, self.back, None, self.layer.in_channels))

    def _read_weights(self) -> None:
        """Transform the weights, unless they are as they were: those of a teacher are, for a whole task."""
        weight = self.layer.weight
        if self.fresh or (self.seen is not None and torch.equal(self.seen, weight)):
            self.fresh = True
            return
        self.there = _transformed(weight.permute(2, 3, 1, 0), self.there)
        # The gradient of the input is a convolution as well, with channels exchanged and turned by half a circle.
        self.back = _transformed(weight.permute(2, 3, 0, 1).flip(0, 1), self.back)
        self.seen, self.fresh = weight.clone(), True


def _pays(x: Tensor) -> bool:
    """Whether there are tiles enough, not mostly beyond the image, and torch has no threads to make up for it."""
    images, _, height, width = x.shape
    tiles = images * -(-height // 4) * -(-width // 4)
    few_threads = torch.get_num_threads() <= MOST_THREADS
    return few_threads and tiles >= FEWEST_TILES and 16 * tiles <= 2 * images * height * width


def _transformed(weight: Tensor, memory: Tensor) -> Tensor:
    """From (3, 3, channels in, channels out)."""
    *_, deep, wide = weight.shape
    size = 36 * deep * _whole_vectors(wide, weight)
    if memory.shape != (size,) or memory.dtype != weight.dtype:
        memory = weight.new_zeros(size)
    call("winograd_weights", (weight.contiguous(), memory), deep, wide)
    return memory


def _convolve(x: Tensor, transformed: Tensor, bias: Tensor | None, wide: int) -> Tensor:
    x = x.contiguous(memory_format=torch.channels_last)
    images, deep, height, width = x.shape
    y = torch.empty((images, wide, height, width), dtype=x.dtype, memory_format=torch.channels_last)
    work = x.new_empty(deep + wide + 36 * BLOCK * (deep + _whole_vectors(wide, x)))
    call("winograd", (x, transformed, bias, y, work), images, height, width, deep, wide, BLOCK)
    return y


def _whole_vectors(channels: int, like: Tensor) -> int:
    """Numbers in as many vectors as these channels need."""
    lanes = VECTOR // like.element_size()
    return -(-channels // lanes) * lanes
