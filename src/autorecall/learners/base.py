"""What every learner is: one verb, `observe`, around any network that maps a batch to logits.

The border lives here and only here: inputs are checked, train mode is set and put back as found, and numbers that
stopped being finite end the step. A method's own file holds nothing but its idea, in `learn`.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import DivergedError, InputError
from .boundaries import Boundaries
from .modes import evaluating, training
from .state import State, integer, mapping, plain, tensor, with_number_keys


@dataclass(frozen=True)
class Memory:
    """What a learner keeps beside the network it trains, counted as the paper counts."""

    images: int = 0
    image_bytes: int = 0
    parameters: int = 0

    @property
    def parameter_bytes(self) -> int:
        """Single precision: 4 bytes a parameter; batch-norm buffers are not counted."""
        return 4 * self.parameters


class Learner(ABC):
    """Learns a stream of batches online. Subclasses implement `learn`."""

    network: nn.Module
    optimizer: torch.optim.Optimizer
    boundaries: Boundaries | None = None  # of learners that need to know where tasks begin

    def __init__(
        self,
        network: nn.Module,
        learning_rate: float,
        optimizer: torch.optim.Optimizer | None = None,
        seed: int = 0,
    ) -> None:
        trained = [p for p in network.parameters() if p.requires_grad]
        if not trained and optimizer is None:
            raise InputError("the network has no parameter that requires a gradient; there is nothing to train")
        self.network = network
        self.optimizer = optimizer or torch.optim.SGD(trained, lr=learning_rate)
        self.generator = torch.Generator().manual_seed(seed)
        self.classes = 0  # number of outputs, known from the first batch on
        self._known_inputs: set[tuple[torch.Size, torch.dtype]] = set()  # that the network is known to take
        # Convolutions of few images are faster with the channels of a pixel side by side.
        self._channels_last = any(isinstance(module, nn.Conv2d) for module in network.modules())

    def observe(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """Learn from one batch of the stream; return the numbers of this step, the same names at every step."""
        x, y = self.check(x, y)
        with training(self.network), torch.enable_grad():
            try:
                return self.learn(x, y)
            finally:
                self._clear_gradients()

    @abstractmethod
    def learn(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """The method: called by `observe` with a checked batch, the network in train mode."""

    def predict(self, x: Tensor) -> Tensor:
        """Logits, in eval mode and without gradients."""
        with evaluating(self.network), torch.no_grad():
            logits: Tensor = self.network(self.prepare(self._laid_out(x.to(self._device()))))
        return logits

    def prepare(self, x: Tensor) -> Tensor:
        """Inputs as this method shows them to the network, for those that scale or resize them."""
        return x

    def boundary(self) -> None:
        """Say that a new task begins with the next batch. Methods that do not use it ignore it."""
        if self.boundaries is not None:
            self.boundaries.ahead = True

    def memory(self) -> Memory:
        """What the learner keeps beside the network."""
        return Memory()

    def kept_shape(self) -> tuple[int, ...] | None:
        """The shape of the images kept, which all others must have; None where none are."""
        return None

    def state_dict(self) -> dict[str, object]:
        """Everything needed to go on bit for bit: plain values and tensors, nothing else.

        But for torch's global generator, which dropout draws from: it is not the learner's, and a run saves it.
        """
        return {
            "network": dict(self.network.state_dict()),
            "optimizer": plain(self.optimizer.state_dict()),
            "generator": self.generator.get_state(),
            "classes": self.classes,
            "boundaries": None if self.boundaries is None else self.boundaries.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Take back what `state_dict` gave, into a learner made with the same network and config."""
        self.network.load_state_dict(mapping(state["network"]))
        # Copied, because an optimizer goes on to change the tensors it is given.
        self.optimizer.load_state_dict(copy.deepcopy(with_number_keys(mapping(state["optimizer"]))))
        self.generator.set_state(tensor(state["generator"]))
        self.classes = integer(state["classes"])
        if self.boundaries is not None:
            self.boundaries.load_state_dict(mapping(state["boundaries"]))
        self._known_inputs.clear()

    def descend(self, loss: Tensor, name: str, keep_gradients: bool = False) -> float:
        """One optimizer step down a loss; `keep_gradients` adds its gradient to those of the step before."""
        value = finite(loss, name)
        if not keep_gradients:
            self._clear_gradients()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return value

    def check_single(self, x: Tensor, what: str) -> None:
        """Refuse a single input where batch-norm cannot take one, by a trial pass that leaves nothing behind."""
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
        """A single row twice, where batch-norm cannot take one input by itself: the mean loss is the same."""
        if len(rows) == 1:
            try:
                self.check_single(x, "a replayed batch of one input")
            except InputError:
                return rows.repeat(2)
        return rows

    def _clear_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.network.zero_grad(set_to_none=True)  # the user's optimizer may hold only a part of it

    def _laid_out(self, x: Tensor) -> Tensor:
        """The same values in the memory layout that this network is fastest with."""
        return x.contiguous(memory_format=torch.channels_last) if self._channels_last and x.dim() == 4 else x

    def _device(self) -> torch.device:
        return next(self.network.parameters()).device

    def check(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The batch as `learn` takes it, or an InputError; nothing is learned and nothing changed."""
        if torch.is_inference_mode_enabled() or torch.is_autocast_enabled(self._device().type):
            raise InputError("observe was called inside inference_mode or autocast; call it outside of them")
        if not isinstance(x, Tensor) or not isinstance(y, Tensor):
            raise InputError(f"observe got {type(x).__name__} and {type(y).__name__}; expected two torch tensors")
        if x.dim() < 2 or len(x) == 0:
            raise InputError(f"x has shape {tuple(x.shape)}; expected a batch (N, ...) of at least one input")
        if y.dim() != 1 or len(y) != len(x):
            raise InputError(f"y has shape {tuple(y.shape)} for {len(x)} inputs; expected one label an input")
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
    """The number of logits per input, from one pass that leaves nothing behind (eval mode, no gradient)."""
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
