"""The steps of a plan: each goes from one node of a network to the next, and back, without autograd.

What is no longer needed is overwritten, and memory is used again from pass to pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .batch import like
from .weighted_norm import BatchNorm, norm_backward, norm_forward, values_per_channel, with_pixels_together

aten = torch.ops.aten


class Pass:
    """The tensors of one pass: what each node gave, and the gradients that have come back to it so far.

    Each gradient belongs to its node alone, which may overwrite it.
    """

    def __init__(self, nodes: int, shares: Tensor, total: int, statistics: bool) -> None:
        self.values: list[Tensor | None] = [None] * nodes
        self.gradients: list[list[Tensor]] = [[] for _ in range(nodes)]
        self.shares, self.total, self.statistics = shares, total, statistics
        self.chosen: dict[int, Tensor] = {}  # where the largest values of a pool are
        self.filtered: set[int] = set()  # targets of convolutions that were done by minimal filtering
        self.distances: list[Tensor] = []  # of the batch statistics from the running ones, one per batch-norm layer
        self.at_distance: Tensor | None = None  # the gradient of each of them

    def value(self, node: int) -> Tensor:
        value = self.values[node]
        assert value is not None
        return value

    def gradient(self, node: int) -> Tensor:
        """The whole gradient of a node."""
        first, *others = self.gradients[node]
        for other in others:
            first = first.add_(other)
        return first


class Step(ABC):
    """From one node to the next, and back."""

    def __init__(self, source: int, target: int) -> None:
        self.source, self.target = source, target

    @abstractmethod
    def forward(self, run: Pass) -> None:
        """Set the value of the target."""

    @abstractmethod
    def backward(self, run: Pass) -> None:
        """Add to the gradient of the source."""

    def renew(self) -> None:  # noqa: B027
        """Weights may have changed: read them again at the next pass."""

    def forget(self) -> None:  # noqa: B027
        """Clear what was seen, if anything is left of it; the memory is kept."""


class Linear(Step):
    """x Wᵀ + b."""

    def __init__(self, source: int, target: int, layer: nn.Linear) -> None:
        super().__init__(source, target)
        self.layer = layer

    def forward(self, run: Pass) -> None:
        run.values[self.target] = F.linear(run.value(self.source), self.layer.weight, self.layer.bias)

    def backward(self, run: Pass) -> None:
        run.gradients[self.source].append(run.gradient(self.target) @ self.layer.weight)


class Convolution(Step):
    """Any two-dimensional one."""

    def __init__(self, source: int, target: int, layer: nn.Conv2d) -> None:
        super().__init__(source, target)
        self.layer = layer
        self.settings = (list(layer.stride), list(cast("tuple[int, int]", layer.padding)), list(layer.dilation))

    def forward(self, run: Pass) -> None:
        x, layer = run.value(self.source), self.layer
        run.values[self.target] = torch.conv2d(x, layer.weight, layer.bias, *self.settings, layer.groups)

    def backward(self, run: Pass) -> None:
        # Of its input, torch needs no more than the shape: the values may have been overwritten.
        g, x, layer = run.gradient(self.target), run.value(self.source), self.layer
        only_input = [True, False, False]
        found = aten.convolution_backward.default(
            g, x, layer.weight, None, *self.settings, False, [0, 0], layer.groups, only_input
        )
        run.gradients[self.source].append(found[0])


class Norm(Step):
    """Batch-norm in train mode; with a shortcut to add, and a ReLU at the end, if they follow."""

    def __init__(
        self, source: int, target: int, layer: BatchNorm, shortcut: int | None, relu: bool, overwrites: bool
    ) -> None:
        super().__init__(source, target)
        self.layer, self.shortcut, self.relu, self.overwrites = layer, shortcut, relu, overwrites
        self.y: Tensor | None = None
        self.work: Tensor | None = None
        self.pull: Tensor | None = None  # the gradient of the distance of the statistics, at mean and variance

    def forward(self, run: Pass) -> None:
        x = with_pixels_together(run.value(self.source))
        run.values[self.source] = x
        add = None if self.shortcut is None else like(run.value(self.shortcut), x)
        if self.y is None or self.y.shape != x.shape or self.y.dtype != x.dtype or self.y.stride() != x.stride():
            self.y = torch.empty_like(x)
        values = values_per_channel(x, run.total)
        running = _running(self.layer) if run.statistics else None
        self.work = norm_forward(self.layer, x, self.y, run.shares, values, self.work, add, self.relu)
        run.values[self.target] = self.y
        if running is not None:
            run.distances.append(self._measure(running, values))

    def backward(self, run: Pass) -> None:
        x, y = run.value(self.source), run.value(self.target)
        g, *others = (like(gradient, x) for gradient in run.gradients[self.target])
        for other in others[1:]:
            g.add_(other)
        gx = x if self.overwrites else torch.empty_like(x)
        assert self.work is not None
        # Without a shortcut, what ReLU let pass can be found from x, with less memory to read.
        after = y if self.relu and self.shortcut is not None else None
        pulled = None if run.at_distance is None or self.pull is None else self.pull * run.at_distance
        norm_backward(g, x, gx, run.shares, self.work, others[0] if others else None, after, self.relu, pulled)
        run.gradients[self.source].append(gx)
        if self.shortcut is not None:
            run.gradients[self.shortcut].append(g)

    def forget(self) -> None:
        for kept in (self.y, self.work, self.pull):
            if kept is not None:
                kept.zero_()

    def _measure(self, running: Tensor, values: int) -> Tensor:
        """The distance of mean and unbiased variance from the running ones before this pass."""
        assert self.work is not None
        unbiased = self.work.new_tensor([1.0, values / (values - 1)])[:, None]
        apart = self.work[:2] * unbiased - running
        distances: Tensor = torch.linalg.vector_norm(apart, dim=1, keepdim=True)
        self.pull = (apart / distances).masked_fill_(distances == 0, 0) * unbiased
        return distances.sum()


class Relu(Step):
    """In place: no step before it needs its own output for the way back."""

    def forward(self, run: Pass) -> None:
        run.values[self.target] = run.value(self.source).clamp_min_(0)

    def backward(self, run: Pass) -> None:
        g = run.gradient(self.target)
        run.gradients[self.source].append(
            aten.threshold_backward.grad_input(g, run.value(self.target), 0, grad_input=g)
        )


class Flatten(Step):
    """(N, channels, height, width) to (N, features)."""

    def forward(self, run: Pass) -> None:
        run.values[self.target] = run.value(self.source).flatten(1)

    def backward(self, run: Pass) -> None:
        run.gradients[self.source].append(run.gradient(self.target).view(run.value(self.source).shape))


class AveragePool(Step):
    """Squares of this size, side by side; None stands for all of an image."""

    def __init__(self, source: int, target: int, size: int | None) -> None:
        super().__init__(source, target)
        self.size = size

    def forward(self, run: Pass) -> None:
        x = run.value(self.source)
        run.values[self.target] = F.adaptive_avg_pool2d(x, 1) if self.size is None else F.avg_pool2d(x, self.size)

    def backward(self, run: Pass) -> None:
        g, x = run.gradient(self.target), run.value(self.source)
        if self.size is None:
            found = aten._adaptive_avg_pool2d_backward(g, x)
        else:
            sizes = [self.size, self.size]
            found = aten.avg_pool2d_backward(g, x, sizes, sizes, [0, 0], False, True, None)
        run.gradients[self.source].append(found)


class MaxPool(Step):
    """The largest value of each window."""

    def __init__(self, source: int, target: int, layer: nn.MaxPool2d) -> None:
        super().__init__(source, target)
        sizes = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        self.settings = (*([size, size] if isinstance(size, int) else list(size) for size in sizes), layer.ceil_mode)

    def forward(self, run: Pass) -> None:
        run.values[self.target], run.chosen[self.target] = aten.max_pool2d_with_indices(
            run.value(self.source), *self.settings
        )

    def backward(self, run: Pass) -> None:
        g, x, chosen = run.gradient(self.target), run.value(self.source), run.chosen[self.target]
        run.gradients[self.source].append(aten.max_pool2d_with_indices_backward(g, x, *self.settings, chosen))


def _running(layer: BatchNorm) -> Tensor | None:
    if layer.running_mean is None or layer.running_var is None:
        return None
    return torch.stack([layer.running_mean, layer.running_var])
