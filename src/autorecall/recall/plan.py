"""A network's pass over recalled images, and the gradient back to them, as a fixed list of steps without autograd.

The ascent runs the same network forward and backward twenty times per batch, and needs no gradient of any weight. A
plan knows that: batch-norm, the addition of a shortcut and ReLU are one step; ReLU and gradients overwrite what is no
longer needed; memory is used again from pass to pass, where a fresh allocation would have to be cleared by the system.

Only networks of well-known layers can be planned, held together by `nn.Sequential` or by classes that say that their
`forward` takes the same steps for every batch (`same_steps = True`). For all others, autograd does it.
"""

from __future__ import annotations

import copy
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook

from .kernels import can_call
from .weighted_norm import BatchNorm, can_compile, norm_backward, norm_forward

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
POOLS = (nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.MaxPool2d)
LAYERS = (nn.Flatten, nn.Linear, nn.ReLU, nn.Conv2d, nn.Identity, *NORMS, *POOLS)
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

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
        x = _pixels_together(run.value(self.source))
        run.values[self.source] = x
        add = None if self.shortcut is None else _like(run.value(self.shortcut), x)
        if self.y is None or self.y.shape != x.shape or self.y.dtype != x.dtype or self.y.stride() != x.stride():
            self.y = torch.empty_like(x)
        values = run.total * (x.numel() // (len(x) * x.shape[1]))
        if values <= 1:
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {tuple(x.shape)}")
        running = _running(self.layer) if run.statistics else None
        self.work = norm_forward(self.layer, x, self.y, run.shares, values, self.work, add, self.relu)
        run.values[self.target] = self.y
        if running is not None:
            run.distances.append(self._measure(running, values))

    def backward(self, run: Pass) -> None:
        x, y = run.value(self.source), run.value(self.target)
        g, *others = (_like(gradient, x) for gradient in run.gradients[self.target])
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


Make: TypeAlias = Callable[[int, int], Step]


class Plan:
    """The steps of one network. It reads the network's weights wherever they are now."""

    def __init__(self, steps: list[Step], nodes: int) -> None:
        self.steps, self._nodes, self._last = steps, nodes, steps[-1].target

    @staticmethod
    def of(network: nn.Module, shape: torch.Size) -> Plan | None:
        """The plan of a network for images of this shape; None if it has anything that is not known here."""
        if not all(map(_is_known, network.modules())):
            return None
        try:
            graph = _graph_of(network)
            return Plan(*_Planner(network, graph, _shapes(network, graph, shape)).plan())
        except Exception:  # a network of the user's may raise anything, and autograd may yet do it
            return None

    @torch.no_grad()
    def forward(
        self, images: Tensor, shares: Tensor, total: int, statistics: bool = False
    ) -> tuple[tuple[Tensor, ...], Pass]:
        """Logits of a batch of `total` images, of which each one here has its share; and what `backward` needs.

        With `statistics` the logits are followed by the mean distance of the batch statistics from the running ones.
        """
        run = Pass(self._nodes, shares, total, statistics)
        run.values[0] = images
        for step in self.steps:
            step.forward(run)
        logits = run.value(self._last)
        return (logits, torch.stack(run.distances).mean()) if run.distances else (logits,), run

    @torch.no_grad()
    def backward(self, run: Pass, at_logits: Tensor, at_distance: Tensor | None = None) -> Tensor:
        """The gradient of the images, from those of the outputs of a pass, which is used up."""
        if at_distance is not None:
            run.at_distance = at_distance / len(run.distances)
        run.gradients[self._last] = [at_logits.clone()]
        for step in reversed(self.steps):
            step.backward(run)
            run.values[step.target] = None
            run.gradients[step.target] = []
        return run.gradient(0)

    @torch.no_grad()
    def forget(self) -> None:
        """Clear what is left of the images of the last passes."""
        for step in self.steps:
            step.forget()


class Plans:
    """The plans of student and teacher, made when they are first asked for, and again when their layers change."""

    def __init__(self) -> None:
        self._known: list[tuple[list[object], Plan | None]] = []

    def of(self, network: nn.Module, images: Tensor) -> Plan | None:
        """The plan for these images, or None if autograd has to do it."""
        if not can_call(images) or images.dim() not in (2, 4):
            return None
        layers = [layer for _, layer in network.named_modules(remove_duplicate=False)]
        watched = _has_any_global_hook()  # type: ignore[no-untyped-call]
        if watched or not all(_is_plain(layer, images.dtype) for layer in layers):
            return None
        as_now = [images.shape[1:], *layers, *map(_settings, layers)]
        for known, plan in self._known:
            if len(known) == len(as_now) and all(map(_same, known, as_now)):
                return plan
        plan = Plan.of(network, images.shape[1:])
        self._known = [*self._known[-1:], (as_now, plan)]
        return plan

    def forget(self) -> None:
        """Clear what is left of the images of the last passes."""
        for _, plan in self._known:
            if plan is not None:
                plan.forget()

    def __reduce__(self) -> tuple[type[Plans], tuple[()]]:
        return Plans, ()  # a copy has other networks


class _Unknown(Exception):
    """Something that cannot be planned."""


def _graph_of(network: nn.Module) -> fx.Graph:
    """What `forward` calls, in this order, found by running a copy whose layers take notes instead of calculating.

    (The tracer of torch.fx would change all modules of the process for a moment, those of other threads as well.)
    """
    copied, graph = copy.deepcopy(network), fx.Graph()
    tracer = fx.proxy.GraphAppendingTracer(graph)

    def note(name: str, x: fx.Proxy) -> fx.Proxy:
        return fx.Proxy(graph.call_module(name, (x.node,)), tracer)

    for name, layer in copied.named_modules():
        if type(layer) in LAYERS:
            layer.forward = partial(note, name)
    graph.output(copied(fx.Proxy(graph.placeholder("images"), tracer)).node)
    for node in graph.nodes:
        if node.op == "call_module" and isinstance(network.get_submodule(node.target), nn.Identity):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    return graph


def _shapes(network: nn.Module, graph: fx.Graph, shape: torch.Size) -> dict[fx.Node, torch.Size]:
    """The shape of everything for a batch of two images."""
    found: dict[str, torch.Size] = {}

    class Noting(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            value = super().run_node(n)
            found[n.name] = value.shape
            return value

    traced = fx.GraphModule(copy.deepcopy(network).eval().to("meta"), graph)
    Noting(traced).run(torch.empty(2, *shape, device="meta", dtype=next(network.parameters()).dtype))
    return {node: found[node.name] for node in graph.nodes}


class _Planner:
    """From the graph of a network to steps."""

    def __init__(self, network: nn.Module, graph: fx.Graph, shapes: dict[fx.Node, torch.Size]) -> None:
        self.network, self.graph, self.shapes = network, graph, shapes
        self.norms: set[nn.Module] = set()
        self.numbers: dict[fx.Node, int] = {}
        self.steps: list[Step] = []
        # Batch-norm that waits for an addition or a ReLU which follows: its input, the layer and what is added.
        self.waiting: dict[fx.Node, tuple[fx.Node, BatchNorm, fx.Node | None]] = {}

    def plan(self) -> tuple[list[Step], int]:
        for node in self.graph.nodes:
            if node.op == "placeholder":
                if self.numbers:
                    raise _Unknown  # more than one input
                self.numbers[node] = 0
            elif node.op == "output":
                if len(node.args) != 1 or not self.steps or self.steps[-1].target != self.numbers.get(node.args[0]):
                    raise _Unknown
            else:
                self._add(node)
        return self.steps, len(self.numbers)

    def _add(self, node: fx.Node) -> None:
        kind = self._kind(node)
        if not node.users:
            raise _Unknown
        source = cast("fx.Node", node.args[0])
        if isinstance(kind, NORMS):
            if kind in self.norms:
                raise _Unknown  # used twice, it would move its statistics in another order
            self.norms.add(kind)
            self._wait_or_make(node, (source, kind, None))
        elif kind == "add":
            self._add_shortcut(node, *node.args)
        elif kind == "relu":
            if source in self.waiting:
                self._make_norm(node, *self.waiting.pop(source), relu=True)
            else:
                if len(source.users) > 1 or not isinstance(self._maker(source), Linear | Convolution):
                    raise _Unknown  # it works in place
                self._append(node, source, Relu)
        else:
            self._append(node, source, cast("Make", kind))

    def _kind(self, node: fx.Node) -> Any:
        """A batch-norm layer, "add", "relu", or what makes the step."""
        given = node.args[1:], node.kwargs
        if node.op == "call_module":
            layer = self.network.get_submodule(str(node.target))
            if isinstance(layer, nn.Linear):
                return lambda source, target: Linear(source, target, layer)
            if isinstance(layer, nn.Conv2d):
                if isinstance(layer.padding, str) or layer.padding_mode != "zeros":
                    raise _Unknown
                return lambda source, target: Convolution(source, target, layer)
            if isinstance(layer, nn.Flatten):
                if (layer.start_dim, layer.end_dim) != (1, -1):
                    raise _Unknown
                return Flatten
            if isinstance(layer, POOLS):
                return self._pool(layer)
            return "relu" if isinstance(layer, nn.ReLU) else layer
        if node.target in (operator.add, torch.add) and len(node.args) == 2 and not node.kwargs:
            return "add"
        if node.target in (F.relu, torch.relu) and given in (((), {}), ((), {"inplace": False})):
            return "relu"
        if node.target in ("flatten", torch.flatten) and given == ((1,), {}):
            return Flatten
        if node.target is F.avg_pool2d and len(given[0]) == 1 and isinstance(given[0][0], int) and not node.kwargs:
            size = given[0][0]
            return lambda source, target: AveragePool(source, target, size)
        if node.target is F.adaptive_avg_pool2d and given == ((1,), {}):
            return lambda source, target: AveragePool(source, target, None)
        raise _Unknown

    def _pool(self, layer: nn.Module) -> Make:
        if isinstance(layer, nn.MaxPool2d) and not layer.return_indices:
            return lambda source, target: MaxPool(source, target, layer)
        if isinstance(layer, nn.AdaptiveAvgPool2d) and layer.output_size in (1, (1, 1)):
            return lambda source, target: AveragePool(source, target, None)
        if isinstance(layer, nn.AvgPool2d) and isinstance(layer.kernel_size, int):
            size = layer.kernel_size
            usual = (layer.stride, layer.padding, layer.ceil_mode, layer.divisor_override) == (size, 0, False, None)
            if usual:
                return lambda source, target: AveragePool(source, target, size)
        raise _Unknown

    def _add_shortcut(self, node: fx.Node, first: Any, second: Any) -> None:
        if not isinstance(first, fx.Node) or not isinstance(second, fx.Node) or first is second:
            raise _Unknown
        if self.shapes[first] != self.shapes[second]:
            raise _Unknown
        if first not in self.waiting or self.waiting[first][2] is not None:
            first, second = second, first
        if first not in self.waiting or self.waiting[first][2] is not None:
            raise _Unknown  # a shortcut without batch-norm before it
        source, layer, _ = self.waiting.pop(first)
        if second in self.waiting:
            self._make_norm(second, *self.waiting.pop(second), relu=False)
        self._wait_or_make(node, (source, layer, second))

    def _wait_or_make(self, node: fx.Node, norm: tuple[fx.Node, BatchNorm, fx.Node | None]) -> None:
        followers = list(node.users)
        if len(followers) == 1 and followers[0].op != "output" and self._follows(followers[0], norm[2] is None):
            self.waiting[node] = norm
        else:
            self._make_norm(node, *norm, relu=False)

    def _follows(self, node: fx.Node, may_add: bool) -> bool:
        kind = self._kind(node)
        return isinstance(kind, str) and (kind == "relu" or may_add)

    def _make_norm(
        self, node: fx.Node, source: fx.Node, layer: BatchNorm, shortcut: fx.Node | None, relu: bool
    ) -> None:
        # If nobody else wants the output of a convolution, its gradient takes its place on the way back.
        overwrites = len(source.users) == 1 and isinstance(self._maker(source), Linear | Convolution)
        added = None if shortcut is None else self._number(shortcut)
        self._append(node, source, lambda s, t: Norm(s, t, layer, added, relu, overwrites))

    def _append(self, node: fx.Node, source: fx.Node, make: Make) -> None:
        step = make(self._number(source), max(self.numbers.values()) + 1)
        self.numbers[node] = step.target
        self.steps.append(step)

    def _maker(self, node: fx.Node) -> Step | None:
        number = self._number(node)
        return next((step for step in self.steps if step.target == number), None)

    def _number(self, node: Any) -> int:
        if node not in self.numbers:
            raise _Unknown
        return self.numbers[node]


def _is_known(module: nn.Module) -> bool:
    kind = type(module)
    return kind in LAYERS or kind in CONTAINERS or bool(vars(kind).get("same_steps", False))


def _settings(layer: nn.Module) -> dict[str, object]:
    """What a layer was made with, as far as it is plain, and its mode: the plan holds only as long as it stays so."""
    plain = (bool, int, float, str, tuple, type(None))
    return {name: value for name, value in vars(layer).items() if isinstance(value, plain)}


def _same(one: object, other: object) -> bool:
    return one is other or (not isinstance(one, nn.Module) and one == other)


def _is_plain(module: nn.Module, dtype: torch.dtype) -> bool:
    """Whether a module does what its class says, in this dtype, and batch-norm uses the batch."""
    if any(getattr(module, hooks) for hooks in HOOKS) or "forward" in vars(module):
        return False
    if isinstance(module, NORMS):
        return (module.training or module.running_mean is None) and can_compile(module, dtype)
    tensors: Iterable[Tensor | None] = module._parameters.values()
    return all(tensor is None or tensor.dtype == dtype for tensor in tensors)


def _running(layer: BatchNorm) -> Tensor | None:
    if layer.running_mean is None or layer.running_var is None:
        return None
    return torch.stack([layer.running_mean, layer.running_var])


def _pixels_together(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.contiguous_format)


def _like(other: Tensor, x: Tensor) -> Tensor:
    return other if other.stride() == x.stride() else torch.empty_like(x).copy_(other)
