"""Batch-norm with a weight per image.

    y = γ·d·r + β   with   μ = Σ α x,   d = x − μ,   σ² = Σ α d²,   r = 1/√(σ² + ε)

where α is an image's share of the batch divided by its pixels. The gradient is ∂x = γ·r·(g − α·Σ g − α·r²·d·Σ g·d).

`_InTorch` does this in torch operations and works everywhere; `_Compiled` does the same in C on a CPU, in fewer
passes over memory.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from ..errors import InputError
from .kernels import call, can_call

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


def weighted_batch_norm(layer: BatchNorm, shares: Tensor, total: int, x: Tensor) -> Tensor:
    """A batch-norm layer in train mode, each image weighted by its share of a batch of `total` images."""
    if len(x) != len(shares):
        raise InputError(
            f"a batch-norm layer got {len(x)} inputs for {len(shares)} images, so they cannot be counted; "
            "set learner.copies = 'keep' for this network"
        )
    own = next((of.dtype for of in (layer.weight, layer.running_mean) if of is not None), x.dtype)
    if own != x.dtype:  # batch-norm of higher precision than the rest of the network, as torch allows
        return weighted_batch_norm(layer, shares, total, x.to(own)).to(x.dtype)
    values = values_per_channel(x, total)
    kind = _Compiled if can_call(x) and _pixels_together(x) and can_compile(layer, x.dtype) else _InTorch
    y: Tensor = kind.apply(x, layer.weight, layer.bias, shares.to(x), layer, values)  # type: ignore[no-untyped-call]
    return y


class _InTorch(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        shares: Tensor,
        layer: BatchNorm,
        values: int,
    ) -> Tensor:
        mean = shares @ _over_pixels(x)
        centred = x - _per_channel(mean, x)
        variance = shares @ _over_pixels(centred.square())
        inverse = (variance + layer.eps).rsqrt()
        scale = _per_channel(inverse if weight is None else inverse * weight, x)
        y = centred * scale if bias is None else torch.addcmul(_per_channel(bias, x), centred, scale)
        ctx.save_for_backward(centred, weight, shares, inverse)  # type: ignore[arg-type]
        if _moves(layer):
            assert layer.running_mean is not None
            rate = mean.new_full((), 0.0 if layer.momentum is None else layer.momentum)
            if layer.num_batches_tracked is not None:  # as in torch: without a counter there is no average
                layer.num_batches_tracked.add_(1)
                if layer.momentum is None:
                    rate = layer.num_batches_tracked.to(mean).reciprocal()
            layer.running_mean.lerp_(mean, rate)
            if layer.running_var is not None:  # unbiased, counting the values of all copies
                layer.running_var.lerp_(variance * (values / (values - 1)), rate)
        return y

    @staticmethod
    def backward(ctx: FunctionCtx, g: Tensor) -> tuple[Tensor | None, ...]:
        centred, weight, shares, inverse = ctx.saved_tensors  # type: ignore[attr-defined]
        pixels = g[0, 0].numel()
        sum_g, sum_gd = _over_pixels(g).sum(0) * pixels, _over_pixels(g * centred).sum(0) * pixels
        scale = inverse if weight is None else inverse * weight
        alpha = (shares / pixels)[:, None]
        slope, offset = alpha * (-scale * inverse.square() * sum_gd), alpha * (-scale * sum_g)
        gx = torch.addcmul(_per_channel(offset, g), centred, _per_channel(slope, g))
        gx.addcmul_(g, _per_channel(scale, g))
        wanted = ctx.needs_input_grad  # type: ignore[attr-defined]
        return gx, sum_gd * inverse if wanted[1] else None, sum_g if wanted[2] else None, None, None, None


class _Compiled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        shares: Tensor,
        layer: BatchNorm,
        values: int,
    ) -> Tensor:
        y = torch.empty_like(x)
        ctx.save_for_backward(x, shares, norm_forward(layer, x, y, shares, values))
        return y

    @staticmethod
    def backward(ctx: FunctionCtx, g: Tensor) -> tuple[Tensor | None, ...]:
        x, shares, work = ctx.saved_tensors  # type: ignore[attr-defined]
        gx = torch.empty_like(x)
        sums = norm_backward(with_pixels_together(g), x, gx, shares, work)
        wanted = ctx.needs_input_grad  # type: ignore[attr-defined]
        return gx, sums[0] if wanted[1] else None, sums[1] if wanted[2] else None, None, None, None


def norm_forward(
    layer: BatchNorm,
    x: Tensor,
    y: Tensor,
    shares: Tensor,
    values: int,
    work: Tensor | None = None,
    add: Tensor | None = None,
    relu: bool = False,
) -> Tensor:
    """Batch-norm of x into y in C, with something to add and ReLU at the end; what `norm_backward` needs.

    That is `work`, if memory of the right size is given. The layer must be one that `can_compile`, all tensors must
    have their pixels together, and `values` counts those of a channel in all copies.
    """
    images, channels = x.shape[:2]
    size = (37 + 2 * images, channels)
    if work is None or work.shape != size or work.dtype != x.dtype:
        work = x.new_empty(size)
    running = (layer.running_mean, layer.running_var, layer.num_batches_tracked)
    call(
        "norm_forward",
        (x, y, shares, layer.weight, layer.bias, work, *(running if _moves(layer) else (None, None, None)), add),
        *(images, x.numel() // (images * channels), channels, relu),
        *(layer.eps, -1.0 if layer.momentum is None else layer.momentum, values),
    )
    return work


def norm_backward(
    g: Tensor,
    x: Tensor,
    gx: Tensor,
    shares: Tensor,
    work: Tensor,
    also: Tensor | None = None,
    y: Tensor | None = None,
    relu: bool = False,
    at_statistics: Tensor | None = None,
) -> Tensor:
    """The gradient of x into gx, which may be x; the gradients of weight and bias are the first two rows returned.

    The gradient of y is g, plus `also`. If that or y is given, g becomes the gradient behind the ReLU. Two rows
    `at_statistics` are a further gradient, of the batch's mean and variance themselves.
    """
    images, channels = x.shape[:2]
    sums = x.new_empty(43, channels)
    pixels = x.numel() // (images * channels)
    call("norm_backward", (g, x, gx, shares, work, sums, also, y, at_statistics), images, pixels, channels, relu)
    return sums


def values_per_channel(x: Tensor, total: int) -> int:
    """Values of a channel in a batch of `total` images like these; one alone has no variance."""
    values = total * (x.numel() // (len(x) * x.shape[1]))
    if values <= 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {tuple(x.shape)}")
    return values


def with_pixels_together(x: Tensor) -> Tensor:
    """The same values, a pixel's channels side by side."""
    return x.contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.contiguous_format)


def _moves(layer: BatchNorm) -> bool:
    """Whether a pass moves running statistics."""
    return layer.training and layer.track_running_stats and layer.running_mean is not None


def can_compile(layer: BatchNorm, dtype: torch.dtype) -> bool:
    """Whether the kernels know everything this layer has."""
    kept = (layer.weight, layer.bias, layer.running_mean, layer.running_var)
    counter = layer.num_batches_tracked
    complete = layer.running_mean is None or (
        layer.running_var is not None and counter is not None and counter.dtype == torch.int64
    )
    return complete and all(tensor is None or (tensor.dtype == dtype and tensor.is_contiguous()) for tensor in kept)


def _pixels_together(x: Tensor) -> bool:
    """Whether memory is ordered by image, then by pixel, with a pixel's channels side by side."""
    if x.dim() == 4:
        return x.is_contiguous(memory_format=torch.channels_last)
    return x.dim() == 2 and x.is_contiguous()


def _over_pixels(x: Tensor) -> Tensor:
    """(N, channels, ...) -> (N, channels), the mean over the rest."""
    return x.mean(tuple(range(2, x.dim()))) if x.dim() > 2 else x


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    """(channels) or (N, channels), shaped to broadcast over x."""
    return values.view(-1, values.shape[-1], *(1,) * (x.dim() - 2))
