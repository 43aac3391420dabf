"""The base of every learner: one verb, `observe`, around any network that maps a batch to logits.

Inputs are checked here (a method may refuse more), train mode is set and restored, and a step ends with an error if
a number is not finite. A method's own file holds little more than its idea, in `learn`.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import DivergedError, InputError
from ..recall.batch import Recalled
from ..storage.schema import concrete
from ..storage.state import State, integer, mapping, savable, tensor, with_number_keys
from .shared.boundaries import Boundaries, BoundaryConfig
from .shared.modes import evaluating, training


@dataclass(frozen=True)
class Memory:
    """What a learner keeps besides the network it trains, counted as in the paper."""

    images: int = 0
    image_bytes: int = 0
    parameters: int = 0

    @property
    def parameter_bytes(self) -> int:
        """Single precision: 4 bytes per parameter; batch-norm buffers are not counted."""
        return 4 * self.parameters


@dataclass(frozen=True)
class LearnerConfig(ABC):
    """The settings of a method. Each method has a subclass, which runs find by its `method` name."""

    method: ClassVar[str]

    def for_stream(self, task_lengths: tuple[int, ...]) -> Self:
        """The settings for a run: task lengths that are left open are filled in from the stream."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        timed = {name: part for name, part in parts.items() if isinstance(part, BoundaryConfig)}
        return replace(self, **{name: part.for_stream(task_lengths) for name, part in timed.items()})

    @abstractmethod
    def build(self, network: nn.Module, seed: int) -> Learner:
        """The learner for a run."""


def methods() -> dict[str, type[LearnerConfig]]:
    """The config class of every method, by name."""
    return {kind.method: kind for kind in concrete(LearnerConfig)}  # type: ignore[type-abstract]


class Learner(ABC):
    """Learns a stream of batches online. Subclasses implement `learn`."""

    network: nn.Module
    optimizer: Optimizer
    boundaries: Boundaries | None = None  # in learners that need to know where tasks begin

    threads: int | None = None
    """Threads that a step may use; None means one per core. It never changes what is computed."""

    on_recall: Callable[[Recalled, Tensor], None] | None = None
    """Called by learners that recall, with every recalled batch and the teacher's probabilities for its distinct
    images. The learner itself keeps no image between batches."""

    def __init__(
        self,
        network: nn.Module,
        learning_rate: float,
        optimizer: Optimizer | None = None,
        seed: int = 0,
    ) -> None:
        trained = [p for p in network.parameters() if p.requires_grad]
        if not trained and optimizer is None:
            raise InputError("the network has no parameter that requires a gradient; there is nothing to train")
        self.network = network
        self.optimizer = optimizer or torch.optim.SGD(trained, lr=learning_rate)
        self.generator = torch.Generator().manual_seed(seed)
        self.classes = 0  # number of outputs, known after the first batch
        self._known_inputs: set[tuple[torch.Size, torch.dtype]] = set()  # that the network is known to accept
        self._convolutional = any(isinstance(module, nn.Conv2d) for module in network.modules())

    def observe(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """Learn from one batch of the stream; return this step's numbers, under the same names at every step."""
        x, y = self.check(x, y)
        with training(self.network), torch.enable_grad():
            try:
                return self.learn(x, y)
            finally:
                self._clear_gradients()

    @abstractmethod
    def learn(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """The method: called by `observe` with a checked batch and the network in train mode."""

    def predict(self, x: Tensor) -> Tensor:
        """Logits, in eval mode and without gradients."""
        with evaluating(self.network), torch.no_grad():
            logits: Tensor = self.network(self.prepare(self._laid_out(x.to(self._device()))))
        return logits

    def prepare(self, x: Tensor) -> Tensor:
        """Inputs as the network sees them, for methods that scale or resize them."""
        return x

    def boundary(self) -> None:
        """Say that the next batch begins a new task. Methods that do not use this ignore it."""
        if self.boundaries is not None:
            self.boundaries.ahead = True

    @property
    def waits_for_boundaries(self) -> bool:
        """Whether tasks begin only when `boundary` is called; all other learners see only batches."""
        return self.boundaries is not None and self.boundaries.config.policy == "boundary"

    def memory(self) -> Memory:
        """What the learner keeps besides the network."""
        return Memory()

    def kept_shape(self) -> tuple[int, ...] | None:
        """The shape of the kept images, which all others must have; None if there are none."""
        return None

    def state_dict(self) -> dict[str, object]:
        """Everything needed to resume bit for bit: plain values and tensors, nothing else.

        Except torch's global generator, which dropout draws from: it is not the learner's, and runs save it.
        """
        return {
            "network": dict(self.network.state_dict()),
            "optimizer": savable(self.optimizer.state_dict()),
            "generator": self.generator.get_state(),
            "classes": self.classes,
            "boundaries": None if self.boundaries is None else self.boundaries.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned, in a learner made with the same network and config."""
        self.network.load_state_dict(mapping(state["network"]))
        # Copied, because an optimizer modifies the tensors it is given.
        self.optimizer.load_state_dict(copy.deepcopy(with_number_keys(mapping(state["optimizer"]))))
        self.generator.set_state(tensor(state["generator"]))
        self.classes = integer(state["classes"])
        if self.boundaries is not None:
            self.boundaries.load_state_dict(mapping(state["boundaries"]))
        self._known_inputs.clear()

    def descend(self, loss: Tensor, name: str, keep_gradients: bool = False) -> float:
        """One optimizer step down a loss; `keep_gradients` adds its gradient to that of the previous step."""
        value = finite(loss, name)
        if not keep_gradients:
            self._clear_gradients()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return value

    def check_single(self, x: Tensor, what: str) -> None:
        """Refuse a single input if batch-norm cannot take one, tested by a pass without side effects."""
        found = [(buffer, buffer.clone()) for buffer in self.network.buffers()]
        try:
            devices = [x.device] if x.device.type == "cuda" else []
            with training(self.network), torch.no_grad(), torch.random.fork_rng(devices):
                self.network(self.prepare(x[:1]))
        except ValueError as error:
            raise InputError(f"{what} is too small for this network ({error}); use two or more") from error
        finally:
            for buffer, value in found:
                buffer.copy_(value)

    def never_alone(self, rows: Tensor, x: Tensor) -> Tensor:
        """A single row twice if batch-norm cannot take a single input: the mean loss is the same."""
        if len(rows) == 1:
            try:
                self.check_single(x, "a replayed batch of one input")
            except InputError:
                return rows.repeat(2)
        return rows

    def _clear_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.network.zero_grad(set_to_none=True)  # the user's optimizer may hold only part of it

    def _laid_out(self, x: Tensor) -> Tensor:
        """The same values in the memory layout this network is fastest with.

        Convolutions over few images are faster with the channels of a pixel side by side.
        """
        return x.contiguous(memory_format=torch.channels_last) if self._convolutional and x.dim() == 4 else x

    def _device(self) -> torch.device:
        return next(self.network.parameters()).device

    def check(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The batch as `learn` takes it, or an InputError; nothing is learned or changed."""
        if torch.is_inference_mode_enabled() or torch.is_autocast_enabled(self._device().type):
            raise InputError("observe was called inside inference_mode or autocast; call it outside them")
        if not isinstance(x, Tensor) or not isinstance(y, Tensor):
            raise InputError(f"observe got {type(x).__name__} and {type(y).__name__}; expected two torch tensors")
        if x.dim() < 2 or len(x) == 0:
            raise InputError(f"x has shape {tuple(x.shape)}; expected a batch (N, ...) of at least one input")
        if y.dim() != 1 or len(y) != len(x):
            raise InputError(f"y has shape {tuple(y.shape)} for {len(x)} inputs; expected one label per input")
        if not x.is_floating_point():
            raise InputError(f"x has dtype {x.dtype}; expected floating point in [0, 1]: use x.float() / 255 for bytes")
        if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
            raise InputError(f"y has dtype {y.dtype}; expected integer class labels: use y.long()")
        if not bool(x.isfinite().all()):
            raise InputError("x has NaN or infinite values; remove or repair these inputs before observe")
        x, y = self._laid_out(x.detach().to(self._device())), y.detach().to(self._device(), torch.int64)
        kept = self.kept_shape()
        if kept is not None and tuple(x.shape[1:]) != kept:
            raise InputError(
                f"x has inputs of shape {tuple(x.shape[1:])} and had {kept} before; this method keeps images, so all "
                "must have one shape"
            )
        if (x.shape[1:], x.dtype) not in self._known_inputs:
            self.classes = count_outputs(self.network, self.prepare(x[:1]))
            self._known_inputs.add((x.shape[1:], x.dtype))
        low, high = int(y.min()), int(y.max())
        if low < 0 or high >= self.classes:
            wrong = low if low < 0 else high
            raise InputError(
                f"y has the label {wrong} but the network has {self.classes} outputs; expected labels from 0 to "
                f"{self.classes - 1}: relabel, or use a network with more outputs"
            )
        if len(x) == 1:
            self.check_single(x, "a batch of one input")
        return x, y


def count_outputs(network: nn.Module, x: Tensor) -> int:
    """The number of logits per input, from one pass without side effects (eval mode, no gradient)."""
    with evaluating(network), torch.no_grad():
        try:
            logits = network(x[:1])
        except (RuntimeError, ValueError, TypeError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(
                f"the network cannot take {x.dtype} inputs of shape {tuple(x.shape[1:])}: {reason}"
            ) from error
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != 1:
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(f"the network gave {found} for one input; expected logits of shape (1, classes)")
    return logits.shape[1]


def finite(value: Tensor, name: str) -> float:
    """The number in a tensor, or a DivergedError that names it."""
    number = float(value.detach())
    if not math.isfinite(number):
        raise DivergedError(name, number)
    return number
