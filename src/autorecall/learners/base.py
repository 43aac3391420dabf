"""The base of every learner: one verb, `observe`, around any network that maps a batch to logits.

Inputs are checked here (a method may refuse more), train mode is set and restored, and a step ends with an error if
a number is not finite: the state is then that before the batch, if no weight had been changed yet. A method's own file
holds little more than its idea, in `learn`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import ConfigError, DivergedError, InputError
from ..networks.fixed import FixedFeatures
from ..networks.inputs import Inputs
from ..recall.batch import Recalled
from ..recall.winograd import MinimalFiltering, Winograd
from ..storage.extensible import Extensible, name_of
from ..storage.schema import concrete
from ..storage.state import State, for_optimizer, integer, mapping, refuse_not_finite, savable, tensor
from .shared import undo
from .shared.boundaries import Boundaries, BoundaryConfig
from .shared.class_gaussians import Likelihoods
from .shared.finite import all_finite, check_finite, finite
from .shared.growing import MOST_OUTPUTS, NOT_THE_LAST, check_outputs, output_layers, set_outputs
from .shared.inspection import (
    check_optimized,
    check_precision,
    count_outputs,
    dies_in_channels_last,
    name_of_buffer,
    numbers_of,
)
from .shared.modes import evaluating, training
from .shared.plain_sgd import PlainSGD
from .shared.tensors import FLOATS, INTEGERS, usable
from .shared.traps import warn_of_traps
from .shared.undo import KeptBuffers, Undo


@dataclass(frozen=True)
class Memory:
    """What a learner keeps besides the network it trains, counted as in the paper."""

    images: int = 0
    image_bytes: int = 0
    parameters: int = 0
    statistics: int = 0
    """Numbers that sum up what was seen, such as means and covariances, and filters and scales of fixed features."""

    @property
    def parameter_bytes(self) -> int:
        """Single precision: 4 bytes per parameter; batch-norm buffers are not counted."""
        return 4 * self.parameters

    @property
    def statistic_bytes(self) -> int:
        """Single precision, too; of a symmetric matrix one half is kept."""
        return 4 * self.statistics


@dataclass(frozen=True)
class LearnerConfig(Extensible):
    """The settings of a method. Each method has a subclass, which runs find by its `method` name.

    Derive a frozen dataclass from it for a method of your own, and its settings become options of the command line.
    """

    tag: ClassVar[str] = "method"
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
    return {name_of(kind): kind for kind in concrete(LearnerConfig)}  # type: ignore[type-abstract]


class Learner(ABC):
    """Learns a stream of batches online. Subclasses implement `learn`."""

    network: nn.Module
    optimizer: Optimizer
    boundaries: Boundaries | None = None  # in learners that need to know where tasks begin

    inputs: Inputs = Inputs()
    """How images enter the network, in methods that scale or resize them."""

    threads: int | None = None
    """Threads that a step may use; None means one per core. It never changes what is computed."""

    grows: bool = False
    """Whether a label beyond the last output adds outputs; otherwise it is refused."""

    on_recall: Callable[[Recalled, Tensor], None] | None = None
    """Called by learners that recall, with every recalled batch and what its distinct images teach, as
    probabilities of classes. The learner itself keeps no image between batches."""

    def __init__(
        self,
        network: nn.Module,
        learning_rate: float,
        optimizer: Optimizer | None = None,
        seed: int = 0,
    ) -> None:
        if next(network.parameters(), None) is None:
            raise InputError("the network has no parameters; there is nothing to train")
        trained = [p for p in network.parameters() if p.requires_grad]
        if not trained and optimizer is None:
            raise InputError("the network has no parameter that requires a gradient; there is nothing to train")
        self.network = network
        self.optimizer = optimizer or PlainSGD(trained, lr=learning_rate)
        self.generator = torch.Generator().manual_seed(seed)
        self.classes = 0  # number of outputs, known after the first batch
        self._known_inputs: dict[tuple[torch.Size, torch.dtype], int] = {}  # the outputs for what the network accepts
        self._convolutional = any(isinstance(module, nn.Conv2d) for module in network.modules())
        self._fragile = any(map(dies_in_channels_last, network.modules()))
        # Minimal filtering gives gradients in the layout that fragile networks do not survive.
        self._filtered = not self._fragile and any(map(Winograd.suits, network.modules()))
        self._layers = list(network.modules())
        self._undo: list[Undo] = []  # what to do to be as before the batch, until a weight is changed
        self._buffers = KeptBuffers(())

    def observe(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """Learn from one batch of the stream; return this step's numbers, under the same names at every step.

        Afterwards every number of the state is finite, or a DivergedError says which one is not.
        """
        self._layers = list(self.network.modules())  # walked through once: it takes longer than one would think
        self._undo = ways_back = self.remember()
        try:
            x, y = self.check(x, y)
            if self.grows and int(y.max()) >= self.classes:
                ways_back += self._grow(int(y.max()) + 1)
                self._check_grown(x)
            self._show(x)
            with training(self.network, self._layers), torch.enable_grad():
                try:
                    numbers = self.learn(x, y)
                finally:
                    self._clear_gradients()
            self.check_state()
        except BaseException as error:
            spoiled = not ways_back
            for go_back in reversed(ways_back):
                go_back()
            if spoiled and isinstance(error, DivergedError):
                raise DivergedError(error.term, error.value, spoiled=True) from error
            raise
        finally:
            self._undo, self._buffers = [], KeptBuffers(())
        return numbers

    def remember(self) -> list[Undo]:
        """How to put everything back as it is now. Attributes are remembered, not what is changed in place."""
        self._buffers = KeptBuffers(self._layers)
        parts = (self, self.boundaries) if self.boundaries is not None else (self,)
        return [self._buffers.put_back, undo.draws(self.generator), *map(undo.attributes, parts)]

    def _show(self, x: Tensor) -> None:
        """Let the first images set the features of a network that has fixed ones."""
        network = self.network
        if not isinstance(network, FixedFeatures) or network.settled:
            return
        before = KeptBuffers([network])
        self._undo.append(before.put_back)
        network.show(self.prepare(x))
        for name, buffer in network.named_buffers():
            check_finite(buffer, name_of_buffer(name))
        if network.settled:
            self.features_settled()

    def features_settled(self) -> None:  # noqa: B027
        """The fixed features of the network have changed for the last time: what is known of earlier ones is void."""

    def with_features(self, kept: Memory) -> Memory:
        """What is kept, and the numbers that make fixed features."""
        own = self.network.kept_numbers() if isinstance(self.network, FixedFeatures) else 0
        return replace(kept, statistics=kept.statistics + own)

    def take_step(self) -> None:
        """The optimizer's step, if the passes before it left finite statistics; it cannot be undone."""
        self.check_buffers()
        self._undo.clear()
        try:
            self.optimizer.step()
        except RuntimeError as error:
            if "without overflow" not in str(error):
                raise
            # torch multiplies only by numbers that the dtype can hold.
            raise DivergedError("the optimizer's step", math.inf) from error

    def check_buffers(self) -> None:
        """A DivergedError if a running statistic is no longer finite."""
        if all_finite(self._buffers.now()):
            return
        names = {id(buffer): name for name, buffer in self.network.named_buffers()}
        for buffer, before in zip(self._buffers.now(), self._buffers.before(), strict=True):
            # A constant of the user's, such as a mask of -inf, is as it should be.
            if not torch.equal(buffer.isfinite(), before.isfinite()):
                check_finite(buffer, name_of_buffer(names[id(buffer)]))

    def check_state(self) -> None:
        """After the steps: a DivergedError if a number that may have changed is no longer finite."""
        self.check_buffers()
        check_optimized(self.optimizer, self.network, "")

    @abstractmethod
    def learn(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """The method: called by `observe` with a checked batch and the network in train mode."""

    def outputs(self, x: Tensor, network: nn.Module | None = None) -> Tensor:
        """What the network, or a copy of it, gives for prepared inputs: for `learn`, and faster than to call it."""
        with self.filtering():
            logits: Tensor = self.network(x) if network is None else network(x)
        return logits

    def filtering(self) -> AbstractContextManager[object]:
        """Inside, convolutions take fewer products, where that can be done."""
        return MinimalFiltering() if self._filtered else nullcontext()

    def predict(self, x: Tensor) -> Tensor:
        """Logits, in eval mode and without gradients."""
        with evaluating(self.network), torch.no_grad():
            logits: Tensor = self.network(self.prepare(self.received(x)))
        return logits

    def settled_features(self, x: Tensor) -> Tensor | None:
        """Features by which `predict_from` predicts, if they will never change again: whoever asks often keeps them."""
        return None

    def predict_from(self, features: Tensor) -> Tensor:
        """What `predict` gives for inputs with these settled features."""
        raise NotImplementedError

    def received(self, x: Tensor) -> Tensor:
        """Inputs where the network is, in the layout it is fastest with."""
        if x.dtype not in FLOATS:
            raise InputError(f"x has dtype {x.dtype}; expected floating point in [0, 1]: use x.float() / 255 for bytes")
        check_precision(x.dtype, self._device())
        return self._laid_out(x.to(self._device()))

    def prepare(self, x: Tensor) -> Tensor:
        """Inputs as the network sees them."""
        return self.inputs.prepare(x)

    def class_means(self) -> tuple[Tensor, Tensor] | None:
        """For methods that predict the class of the nearest mean of features: labels, and their means."""
        return None

    def likelihoods(self) -> Likelihoods | None:
        """For methods that add the log-likelihoods of class Gaussians to the network's logits."""
        return None

    def grow(self, outputs: int) -> None:
        """Have this many outputs from now on, for classes that come later. No image changes its class by that.

        What was learned is kept, with the state of the optimizer and everything else that the method keeps. A network
        that does not end in an nn.Linear needs a method `output_layers` that returns the layers to grow.
        """
        present = output_layers(self.network)[0].out_features
        if self.classes not in (0, present):
            raise InputError(NOT_THE_LAST)
        check_outputs(outputs, present)
        self._grow(outputs)

    @property
    def is_its_network(self) -> bool:
        """Whether all that the method has learned is in the network, so that it can go on from that alone."""
        return False

    def kept_networks(self) -> list[nn.Module]:
        """Copies of the network that the method keeps, which have as many outputs."""
        return []

    def grown(self, before: int, outputs: int) -> None:
        """After outputs were added, for methods that keep something for every output."""
        return

    def _grow(self, outputs: int) -> list[Undo]:
        before = output_layers(self.network)[0].out_features
        ways_back = [undo.attributes(self), set_outputs(self.network, outputs, self.optimizer)]
        ways_back += [set_outputs(copy, outputs) for copy in self.kept_networks()]
        self.classes, self._known_inputs = outputs, {}
        self.grown(before, outputs)
        return ways_back

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
        return self.with_features(Memory())

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
        # A constant of the user's, such as a mask of -inf, is as it should be, in the network and in its copies.
        masks = {name for name, value in self.network.state_dict().items() if not all_finite([value])}
        refuse_not_finite(state, except_for=masks)
        self.network.load_state_dict(mapping(state["network"]))
        self.optimizer.load_state_dict(for_optimizer(self.optimizer, mapping(state["optimizer"])))
        self.generator.set_state(tensor(state["generator"]))
        self.classes = integer(state["classes"])
        if self.boundaries is not None:
            self.boundaries.load_state_dict(mapping(state["boundaries"]))
        self._known_inputs = {}

    def descend(self, loss: Tensor, name: str, keep_gradients: bool = False) -> float:
        """One optimizer step down a loss; `keep_gradients` adds its gradient to that of the previous step."""
        value = finite(loss, name)
        if not keep_gradients:
            self._clear_gradients()
        loss.backward()  # type: ignore[no-untyped-call]
        self.take_step()
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
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                p.grad = None
        for layer in self._layers:  # the user's optimizer may hold only part of it
            for p in layer._parameters.values():
                if p is not None:
                    p.grad = None

    def _laid_out(self, x: Tensor) -> Tensor:
        """The same values in the memory layout this network is fastest with.

        Convolutions over few images are faster with the channels of a pixel side by side.
        """
        if not self._convolutional or x.dim() != 4:
            return x
        if self._fragile:
            # Flat in between, because images of one channel are contiguous in both layouts, and may look like either.
            return x.contiguous().view(-1).view(x.shape)
        return x.contiguous(memory_format=torch.channels_last)

    def _device(self) -> torch.device:
        return next(self.network.parameters()).device

    def check(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The batch as `learn` takes it, or an InputError; nothing is learned or changed."""
        device = self._device()
        if torch.is_inference_mode_enabled() or torch.is_autocast_enabled(device.type):
            raise InputError("observe was called inside inference_mode or autocast; call it outside them")
        if self.threads is not None and (type(self.threads) is not int or self.threads < 1):
            raise InputError(f"learner.threads is {self.threads!r:.80}; expected a whole number from 1, or None")
        if not isinstance(x, Tensor) or not isinstance(y, Tensor):
            raise InputError(f"observe got {type(x).__name__} and {type(y).__name__}; expected two torch tensors")
        x, y = usable("x", x), usable("y", y)
        if x.dim() < 2 or x.numel() == 0:
            raise InputError(f"x has shape {tuple(x.shape)}; expected a batch (N, ...) of at least one input")
        if y.dim() != 1 or len(y) != len(x):
            raise InputError(f"y has shape {tuple(y.shape)} for {len(x)} inputs; expected one label per input")
        if x.dtype not in FLOATS:
            raise InputError(f"x has dtype {x.dtype}; expected floating point in [0, 1]: use x.float() / 255 for bytes")
        if y.dtype not in INTEGERS:
            raise InputError(f"y has dtype {y.dtype}; expected integer class labels: use y.long()")
        if not all_finite([x]):
            raise InputError("x has NaN or infinite values; remove or repair these inputs before observe")
        unsigned = y.dtype == torch.uint64
        x, y = self._laid_out(x.to(device)), y.to(device, torch.int64)
        kept = self.kept_shape()
        if kept is not None and tuple(x.shape[1:]) != kept:
            raise InputError(
                f"x has inputs of shape {tuple(x.shape[1:])} and had {kept} before; this method keeps images or their "
                "means, so all must have one shape"
            )
        known = self._known_inputs.get((x.shape[1:], x.dtype))
        if known is None:
            self._check_numbers(x)
            if not self._known_inputs:
                warn_of_traps(self.network, x)
            known = count_outputs(self.network, self.prepare(x[:1]))
            if not self._known_inputs and self.classes not in (0, known):
                raise InputError(
                    f"the network has {known} outputs but the loaded state is of {self.classes}; use such a network"
                )
            self._known_inputs = {**self._known_inputs, (x.shape[1:], x.dtype): known}
        self.classes = known
        low, high = map(int, y.aminmax())
        if low < 0 or high >= (MOST_OUTPUTS if self.grows else self.classes):
            self._refuse_changed_by_hand(x)
            wrong = low % 2**64 if low < 0 and unsigned else low if low < 0 else high
            raise InputError(
                f"y has the label {wrong} but the network has {self.classes} outputs; expected labels from 0 to "
                f"{self.classes - 1}: relabel, or add outputs with learner.grow({max(high, 0) + 1})"
            )
        if len(x) == 1:
            self.check_single(x, "a batch of one input")
        return x, y

    def _refuse_changed_by_hand(self, x: Tensor) -> None:
        """Say what to do if somebody put another last layer into the network."""
        now = count_outputs(self.network, self.prepare(x[:1]))
        if now != self.classes:
            raise InputError(
                f"the network has {now} outputs now and had {self.classes}; a layer that was changed by hand is not "
                f"known to the optimizer: leave it as it was, and use learner.grow({now})"
            )

    def _check_grown(self, x: Tensor) -> None:
        """Refuse a network whose last layer was not found."""
        with suppress(InputError):
            if count_outputs(self.network, self.prepare(x[:1])) == self.classes:
                return
        raise InputError(NOT_THE_LAST)

    def _check_numbers(self, x: Tensor) -> None:
        """Refuse a precision that this machine does not have, and settings that it cannot hold."""
        kinds = {x.dtype, *(p.dtype for p in self.network.parameters() if p.dtype in FLOATS)}
        for kind in kinds:
            check_precision(kind, x.device)
        largest = min(torch.finfo(kind).max for kind in kinds)
        for name, value in numbers_of(getattr(self, "config", None), "learner"):
            if abs(value) > largest:
                raise ConfigError(
                    f"{name} is {value}, which is more than the numbers of this network can hold ({largest:.3g}); "
                    "lower it, or use a network of higher precision"
                )
