"""3 × 3 convolutions, which are most of a residual network, with a quarter of the products: see _winograd.c.

The price is memory: in a plan, a layer's weights are kept in transformed form, four times their size, once for the
forward pass and once for the gradient. Where weights learn, they are transformed each time, in memory that all share.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .kernels import VECTORS, call, can_call, widest_vector, winograd_pays
from .steps import Convolution, Pass

BLOCK = 24  # tiles that are transformed together
GRADIENT_BLOCK = 160  # the same, for gradients of weights
FEWEST_TILES = 8  # with fewer, reading the transformed weights takes longer than reading the plain ones
MOST_KEPT = 2**24  # numbers of scratch memory: weights of 640 channels
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
            self.weights.read(weight)
            self.fresh = True
        run.values[self.target] = self.weights.convolve(x, bias)
        run.filtered.add(self.target)

    def backward(self, run: Pass) -> None:
        if self.target in run.filtered:
            run.gradients[self.source].append(self.weights.convolve_back(run.gradient(self.target)))
        else:
            super().backward(run)


class MinimalFiltering(TorchFunctionMode):
    """Inside, all suitable convolutions are done this way, with their gradients."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.conv2d and not kwargs and len(args) == 7:
            x, weight, bias, *settings = args
            if tuple(settings) == USUAL and _is_plain(x, weight, bias) and _pays(x, weight, bias):
                return _Filtered.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return func(*args, **kwargs)


class _Filtered(torch.autograd.Function):
    """A convolution that reads its weights every time, as they learn."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        with SCRATCH.lend("weights", 36 * _apart(weight.shape[1], weight.shape[0], x), x) as memory:
            y = _convolve(x, _there(weight, memory), bias, *weight.shape[:2])
        # As torch lays it out: what comes next may depend on that.
        together = any(of.is_contiguous(memory_format=torch.channels_last) for of in (x, weight))
        return y if together else y.contiguous()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, bias = inputs
        ctx.save_for_backward(x, weight)
        ctx.biased = bias is not None

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g,), (x, weight) = gradients, ctx.saved_tensors
        wanted = ctx.needs_input_grad
        if torch.is_grad_enabled() or not _is_plain(g, x, weight) or g.dtype != x.dtype:
            # Gradients of gradients, or of many losses at once.
            sizes = [len(weight)] if ctx.biased else None
            return torch.ops.aten.convolution_backward(  # type: ignore[no-any-return]
                g, x, weight, sizes, *map(list, USUAL[:3]), False, [0, 0], USUAL[3], wanted
            )
        wide, deep = weight.shape[:2]
        g = g.contiguous(memory_format=torch.channels_last)
        by_input = None
        if wanted[0]:
            with SCRATCH.lend("weights", 36 * _apart(wide, deep, g), g) as memory:
                by_input = _convolve(g, _back(weight, memory), None, deep, wide)
        return by_input, _weight_gradient(x, g) if wanted[1] else None, g.sum((0, 2, 3)) if wanted[2] else None


class _Weights:
    """Transformed weights of a layer."""

    def __init__(self) -> None:
        self.seen: Tensor | None = None
        self.there = self.back = torch.empty(0)

    @torch.no_grad()
    def read(self, weight: Tensor) -> None:
        """Transform the weights, unless they are as they were: a teacher's stay the same for a whole task."""
        if self.seen is not None and self.seen.dtype == weight.dtype and torch.equal(self.seen, weight):
            return
        self.seen = None  # whatever interrupts the transform
        self.there = _there(weight, self.there)
        self.back = _back(weight, self.back)
        self.seen = weight.detach().clone()

    def convolve(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """The layer's outputs."""
        assert self.seen is not None
        return _convolve(x, self.there, bias, *self.seen.shape[:2])

    def convolve_back(self, g: Tensor) -> Tensor:
        """The gradient of the layer's inputs, from that of its outputs."""
        assert self.seen is not None
        return _convolve(g, self.back, None, self.seen.shape[1], self.seen.shape[0])


class _Scratch(threading.local):
    """Memory for what one call needs, kept by each thread: new memory would have to be cleared by the system."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, torch.dtype], Tensor] = {}

    @contextmanager
    def lend(self, name: str, size: int, like: Tensor) -> Iterator[Tensor]:
        """So many numbers, whatever they are. Nobody else gets them meanwhile, such as the handler of a signal."""
        kept = self._kept.pop((name, like.dtype), None)
        if kept is None or len(kept) < size:
            kept = torch.empty(size, dtype=like.dtype, device="cpu")
        yield kept[:size]
        if len(kept) <= MOST_KEPT:
            self._kept[name, like.dtype] = kept


SCRATCH = _Scratch()


def _fits(weight: Tensor) -> bool:
    """Whether kernels are 3 × 3 and both numbers of channels fill a vector."""
    return weight.shape[2:] == (3, 3) and min(weight.shape[:2]) * weight.element_size() >= VECTORS[0]


def _pays(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether these tensors can be filtered, and that is faster: enough tiles, and few of them past the border."""
    tensors = [x, weight] if bias is None else [x, weight, bias]
    if bias is not None and bias.shape != weight.shape[:1]:
        return False
    if x.dim() != 4 or weight.dim() != 4 or not _fits(weight) or x.shape[1] != weight.shape[1] or not can_call(x):
        return False
    if any(not of.is_cpu or of.dtype != x.dtype for of in tensors) or not winograd_pays():
        return False
    images, _, height, width = x.shape
    tiles = _tiles(x)
    few_threads = torch.get_num_threads() <= MOST_THREADS
    return few_threads and tiles >= FEWEST_TILES and 16 * tiles <= 2 * images * height * width


def _is_plain(*tensors: Any) -> bool:
    """Whether these, if anything, are numbers in memory as they are, and nobody watches or transforms what is done."""
    if torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling() or _is_watched():
        return False
    try:
        return all(
            of is None or (type(of) in (Tensor, nn.Parameter) and bool(of.data_ptr()) and not of.is_neg())
            for of in tensors
        )
    except RuntimeError:  # inside a transform of torch.func
        return False


def _is_watched() -> bool:
    """Whether there is a dispatch mode, which counts operations, say, a transform, or differentiation forward."""
    # There is no official way to ask; a torch without these has none of them active, as far as we know.
    modes = getattr(torch._C, "_len_torch_dispatch_stack", int)()
    transforms = getattr(torch._C, "_are_functorch_transforms_active", bool)()
    return bool(modes or transforms or getattr(torch.autograd.forward_ad, "_current_level", -1) >= 0)


def _there(weight: Tensor, memory: Tensor) -> Tensor:
    """Weights for the forward pass, in this memory if it fits."""
    row, column = weight.stride(1), weight.stride(0)
    return _transformed(weight, memory, weight.shape[1], weight.shape[0], row, column, rotated=False)


def _back(weight: Tensor, memory: Tensor) -> Tensor:
    """Weights for the gradient of the input: a convolution with channels exchanged and kernels rotated by 180°."""
    row, column = weight.stride(0), weight.stride(1)
    return _transformed(weight, memory, weight.shape[0], weight.shape[1], row, column, rotated=True)


def _transformed(weight: Tensor, memory: Tensor, deep: int, wide: int, row: int, column: int, rotated: bool) -> Tensor:
    size = 36 * _apart(deep, wide, weight)
    if memory.shape != (size,) or memory.dtype != weight.dtype:
        memory = weight.new_empty(size)
    name = f"winograd_weights_{_vector(deep, wide, weight)}"
    call(name, (weight, memory), deep, wide, weight.stride(2), weight.stride(3), row, column, rotated)
    return memory


def _convolve(x: Tensor, transformed: Tensor, bias: Tensor | None, wide: int, deep: int) -> Tensor:
    images, _, height, width = x.shape
    assert (x.shape[1], transformed.dtype) == (deep, x.dtype)
    assert len(transformed) == 36 * _apart(deep, wide, x)
    x = x.contiguous(memory_format=torch.channels_last)
    bias = None if bias is None else bias.contiguous()
    shape = (images, wide, height, width)
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    with SCRATCH.lend("work", deep + wide + 36 * BLOCK * (deep + _whole_vectors(deep, wide, x)), x) as work:
        call(
            f"winograd_{_vector(deep, wide, x)}",
            (x, transformed, bias, y, work),
            images,
            height,
            width,
            deep,
            wide,
            BLOCK,
        )
    return y


def _weight_gradient(x: Tensor, g: Tensor) -> Tensor:
    """The gradient of the weights, from inputs and the gradient of outputs, whose channels are together."""
    images, deep, height, width = x.shape
    wide, padded = g.shape[1], _whole_vectors(deep, g.shape[1], g)
    assert (g.shape, g.dtype) == ((images, wide, height, width), x.dtype)
    x = x.contiguous(memory_format=torch.channels_last)
    found = x.new_empty(3, 3, deep, wide)
    block = min(GRADIENT_BLOCK, _tiles(x))
    with SCRATCH.lend("work", deep + wide + 36 * (block * (deep + padded) + _apart(deep, wide, x)), x) as work:
        call(
            f"winograd_gradient_{_vector(deep, wide, x)}", (x, g, found, work), images, height, width, deep, wide, block
        )
    return found.permute(3, 2, 0, 1)


def _tiles(x: Tensor) -> int:
    """Tiles of 4 × 4 pixels that cover a batch."""
    images, _, height, width = x.shape
    return images * -(-height // 4) * -(-width // 4)


def _vector(deep: int, wide: int, like: Tensor) -> int:
    """Bytes of the vectors to use: the widest that both numbers of channels fill."""
    widest = widest_vector()
    return widest if min(deep, wide) * like.element_size() >= widest else VECTORS[0]


def _whole_vectors(deep: int, wide: int, like: Tensor) -> int:
    """Numbers in as many vectors as the outputs need."""
    lanes = _vector(deep, wide, like) // like.element_size()
    return -(-wide // lanes) * lanes


def _apart(deep: int, wide: int, like: Tensor) -> int:
    """Numbers of one of 36 matrices, with the room between it and the next."""
    return deep * _whole_vectors(deep, wide, like) + 3 * _vector(deep, wide, like) // like.element_size()
