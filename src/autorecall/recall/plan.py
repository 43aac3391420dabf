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
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook

from .kernels import can_call
from .steps import AveragePool, Convolution, Flatten, Linear, MaxPool, Norm, Pass, Relu, Step
from .weighted_norm import BatchNorm, can_compile
from .winograd import Winograd

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
POOLS = (nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.MaxPool2d)
LAYERS = (nn.Flatten, nn.Linear, nn.ReLU, nn.Conv2d, nn.Identity, *NORMS, *POOLS)
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


Make: TypeAlias = Callable[[int, int], Step]


class Plan:
    """The steps of one network. It reads the network's weights wherever they are, at the first pass after `renew`."""

    def __init__(self, steps: list[Step], nodes: int) -> None:
        self.steps, self._nodes, self._last = steps, nodes, steps[-1].target

    @staticmethod
    def of(network: nn.Module, shape: torch.Size) -> Plan | None:
        """The plan of a network for images of this shape; None if it has anything that is not known here."""
        if not all(map(_is_known, network.modules())):
            return None
        try:
            return Plan(*_Planner(network, *_graph_of(network, shape)).plan())
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

    def renew(self) -> None:
        """Weights may have changed."""
        for step in self.steps:
            step.renew()

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
        """The plan for these images, or None if autograd has to do it.

        It reads weights at its next pass, and then no more until it is asked for again.
        """
        if not can_call(images) or images.dim() not in (2, 4):
            return None
        layers = [layer for _, layer in network.named_modules(remove_duplicate=False)]
        watched = _has_any_global_hook()  # type: ignore[no-untyped-call]
        if watched or not all(_is_plain(layer, images.dtype) for layer in layers):
            return None
        as_now = [images.shape[1:], images.dtype, *layers, *map(_settings, layers)]
        for known, plan in self._known:
            if unchanged(known, as_now):
                if plan is not None:
                    plan.renew()
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


def unchanged(before: list[object], now: list[object]) -> bool:
    """Whether these are the same modules, and equal values."""
    return len(before) == len(now) and all(map(_same, before, now))


def _same(one: object, other: object) -> bool:
    return one is other or (not isinstance(one, nn.Module) and one == other)


class _Unknown(Exception):
    """Something that cannot be planned."""


def _graph_of(network: nn.Module, shape: torch.Size) -> tuple[fx.Graph, dict[fx.Node, torch.Size]]:
    """What `forward` calls, in this order, and the shape of each result for a batch of two images.

    Found by running a copy twice: first with layers that take notes instead of calculating, then as it is. (The tracer
    of torch.fx would change all modules of the process for a moment, those of other threads as well; the meta device
    would need no values, but takes longer than a pass.)
    """
    copied, graph = copy.deepcopy(network), fx.Graph()
    tracer = fx.proxy.GraphAppendingTracer(graph)
    layers = {name: layer for name, layer in copied.named_modules() if type(layer) in LAYERS}

    def note(name: str, x: fx.Proxy) -> fx.Proxy:
        return fx.Proxy(graph.call_module(name, (x.node,)), tracer)

    for name, layer in layers.items():
        layer.forward = partial(note, name)
    graph.output(copied(fx.Proxy(graph.placeholder("images"), tracer)).node)
    for layer in layers.values():
        del layer.forward
    for node in graph.nodes:
        if node.op == "call_module" and isinstance(layers[node.target], nn.Identity):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    return graph, _shapes(copied.eval(), graph, next(network.parameters()).new_zeros(2, *shape))


@torch.no_grad()
def _shapes(network: nn.Module, graph: fx.Graph, images: Tensor) -> dict[fx.Node, torch.Size]:
    found: dict[fx.Node, torch.Size] = {}

    class Noting(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            value = super().run_node(n)
            found[n] = value.shape
            return value

    with torch.random.fork_rng(devices=[]):  # what cannot be planned is run as well, and may draw
        Noting(network, graph=graph).run(images)
    return found


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
                if Winograd.suits(layer):
                    return lambda source, target: Winograd(source, target, layer)
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


def _is_plain(module: nn.Module, dtype: torch.dtype) -> bool:
    """Whether a module does what its class says, in this dtype, and batch-norm uses the batch."""
    if any(getattr(module, hooks) for hooks in HOOKS) or "forward" in vars(module):
        return False
    if isinstance(module, NORMS):
        return (module.training or module.running_mean is None) and can_compile(module, dtype)
    tensors: Iterable[Tensor | None] = module._parameters.values()
    return all(tensor is None or tensor.dtype == dtype for tensor in tensors)
