"""Distinct images instead of copies: the same mathematics with a tenth of the images.

M recalled images that start as N < M real ones are copies of at most N distinct images, and copies of one image have
the same gradient at every step. So the network runs on the distinct images only, each weighted by its count: every
mean becomes a weighted mean. Batch-norm is the only layer of ours that looks across images; `counted` gives it weighted
statistics. A layer that treats copies of an image differently, such as dropout, breaks this; the copies must then be
kept. Whether a network of unknown layers does is found out by trying.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from ..torch_state import random_state, set_random_state
from .weighted_norm import weighted_batch_norm

# Layers that process each image independently and alike, by exact type: a subclass may do anything.
ALONE: frozenset[type[nn.Module]] = frozenset(
    {nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.Identity, nn.Flatten, nn.Unflatten, nn.Linear, nn.Embedding}
    | {nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Upsample}
    | {nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.GLU}
    | {nn.Tanh, nn.Sigmoid, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Softplus, nn.Softsign, nn.LogSigmoid}
    | {nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d}
    | {nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d}
    | {nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d}
    | {nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.LocalResponseNorm}
    | {nn.ZeroPad1d, nn.ZeroPad2d, nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReplicationPad1d, nn.ReplicationPad2d}
)
DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
WEIGHTED = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def obstacle(network: nn.Module) -> str | None:
    """The type and name of the first module not known to treat copies of an image alike; None if all are known.

    Your own module class is known if it sets `treats_images_alone = True`.
    """
    for name, module in network.named_modules():
        kind = type(module)
        silent = kind in DROPOUT and (not module.training or getattr(module, "p", 1) == 0)
        known = kind in ALONE or kind in WEIGHTED or silent or vars(kind).get("treats_images_alone", False)
        if not known:
            return f"{kind.__name__} ({name})" if name else kind.__name__
    return None


def mixes_images(network: nn.Module) -> bool:
    """Whether a layer may look across the images of a batch, as batch-norm does; dropout does not."""
    return not all(map(_treats_images_alone, network.modules()))


def _treats_images_alone(layer: nn.Module) -> bool:
    kind = type(layer)
    if kind in WEIGHTED:
        return not _uses_batch(layer)
    return kind in ALONE or kind in DROPOUT or bool(vars(kind).get("treats_images_alone", False))


def in_passes(network: nn.Module, batches: list[Tensor]) -> list[Tensor]:
    """The logits of several batches: in one pass if that makes no difference, or each in its own."""
    if len(batches) == 1 or mixes_images(network):
        return [network(x) for x in batches]
    return list(torch.split(network(torch.cat(batches)), [len(x) for x in batches]))


def treats_copies_alike(network: nn.Module, x: Tensor) -> bool:
    """Whether a pass over copies of images and one over counted images agree, in values and gradients.

    The network is used up: give a copy. Whatever draws random numbers does not treat copies alike.
    """
    if any(
        isinstance(layer, DROPOUT) and layer.p and (layer.training or type(layer) not in DROPOUT)
        for layer in network.modules()
    ):
        return False
    rows, counts = torch.arange(3) % len(x), torch.tensor([1, 3, 2])
    of_copies = torch.tensor([1, 0, 2, 1, 2, 1])
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand((3, *x.shape[1:]), generator=generator).to(x)
    images = (x[rows.to(x.device)] + noise) / 2  # in the range of x, and no two alike
    _scatter(network, generator)
    other, device = copy.deepcopy(network), str(x.device)
    before = random_state(device), random.getstate()
    try:
        passes = [
            _logits_and_gradient(other, images, counts),
            _logits_and_gradient(network, images[of_copies.to(x.device)], None, of_copies.tolist()),
        ]
        after = random_state(device)
        drawn = random.getstate() != before[1] or any(not torch.equal(before[0][key], after[key]) for key in after)
    except Exception:  # a user's network may raise anything
        return False
    finally:
        set_random_state(before[0], device)
        random.setstate(before[1])
    pairs = [(one[of_copies.to(x.device)], many) for one, many in zip(*passes, strict=True)]
    if drawn or not bool(pairs[1][1].any()):  # without a gradient, nothing was tried
        return False
    tolerance = 3 * torch.finfo(x.dtype).eps ** 0.5
    pairs += [pair for pair in zip(other.buffers(), network.buffers(), strict=True) if pair[0].is_floating_point()]
    return all(bool((one - many).abs().max() <= tolerance * many.abs().max()) for one, many in pairs if many.numel())


@torch.no_grad()
def _scatter(network: nn.Module, generator: torch.Generator) -> None:
    """Give every weight a little noise: where weights are 0, as in a fresh last layer, nothing could be seen."""
    for p in network.parameters():
        if p.is_floating_point():
            p.add_(torch.randn(p.shape, generator=generator).to(p), alpha=0.1)


def _logits_and_gradient(
    network: nn.Module, images: Tensor, counts: Tensor | None, of_copies: list[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Logits, and the gradient for one copy of each image, of a sum in which copies of an image have one weight."""
    with torch.enable_grad():
        images = images.detach().requires_grad_()
        logits = forward(network, images, None if counts is None else counts.to(images.device))
        rows = torch.tensor(range(len(images)) if of_copies is None else of_copies, device=images.device)
        slopes = torch.cos(1.0 + rows[:, None] + 3.0 * torch.arange(logits.shape[1], device=images.device)).to(logits)
        each = torch.ones_like(rows) if counts is None else counts.to(images.device)
        (gradient,) = torch.autograd.grad((logits * slopes * each[:, None]).sum(), images)
    return logits.detach(), gradient / each.view(-1, *(1,) * (images.dim() - 1))


def distinct(origins: Tensor) -> tuple[Tensor, Tensor]:
    """The images that occur, and how often each occurs.

    >>> distinct(torch.tensor([2, 0, 2, 2]))
    (tensor([0, 2]), tensor([1, 3]))
    """
    images, counts = torch.unique(origins, return_counts=True)
    return images, counts


@contextmanager
def counted(network: nn.Module, counts: Tensor | None, total: int | None = None) -> Iterator[None]:
    """Inside, the network treats a batch as if image k occurred counts[k] times; with None, each occurs once.

    `total` is the sum of the counts, if it is at hand.
    """
    layers = [m for m in network.modules() if isinstance(m, WEIGHTED) and _uses_batch(m)] if counts is not None else []
    found = [vars(layer).get("forward") for layer in layers]
    if counts is not None and layers:
        total = int(counts.sum()) if total is None else total
        shares = counts.to(next(network.parameters())) / total
        for layer in layers:
            # On the instance, not the class: it leaves no trace.
            vars(layer)["forward"] = partial(weighted_batch_norm, layer, shares, total)
    try:
        yield
    finally:
        for layer, forward in zip(layers, found, strict=True):
            vars(layer).pop("forward", None)
            if forward is not None:
                vars(layer)["forward"] = forward


def forward(network: nn.Module, images: Tensor, counts: Tensor | None, total: int | None = None) -> Tensor:
    """Logits of a batch in which image k occurs counts[k] times."""
    with counted(network, counts, total):
        logits: Tensor = network(images)
    return logits


def _uses_batch(layer: nn.Module) -> bool:
    return layer.training or getattr(layer, "running_mean", None) is None
