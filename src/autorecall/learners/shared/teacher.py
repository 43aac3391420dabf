"""The teacher: an earlier copy of the student, refreshed when a task begins. The paper's lag T is a task's length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...checks import brief
from ...errors import ConfigError, InputError
from ...storage.state import State, mapping
from ..base import Learner, Memory
from . import undo
from .boundaries import MOST, Boundaries, BoundaryConfig
from .finite import all_finite, check_finite
from .frozen_copy import frozen_copy
from .growing import output_layers
from .inspection import name_of_buffer
from .undo import Undo


@dataclass(frozen=True)
class LagConfig(BoundaryConfig):
    """When the teacher becomes a fresh copy of the student."""

    part: ClassVar[str] = "learner.lag"

    start: int | None = None
    """Batches before recall begins; if unset, until the second copy (in a run with policy every: the second task)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start is not None and not 0 <= self.start <= MOST:
            raise ConfigError(
                f"learner.lag.start is {brief(self.start)}; expected at least 0 batches, and at most {MOST:,}"
            )

    def for_stream(self, task_lengths: Sequence[int]) -> Self:
        """T and the start of recall from the stream, if they are unset."""
        lag = super().for_stream(task_lengths)
        return replace(lag, start=task_lengths[0]) if lag.policy == "every" and lag.start is None else lag


class Teacher:
    """An earlier copy of a network; frozen, except for its running batch statistics."""

    def __init__(self, config: LagConfig) -> None:
        self.config = config
        self.boundaries = Boundaries(config)
        self.network: nn.Module | None = None

    def follow(self, student: nn.Module, labels: Tensor) -> nn.Module | None:
        """Before a batch: copy the student if it is time, and return the teacher, or None before recall starts."""
        now = self.boundaries.batches
        if self.boundaries.before(labels):
            self.refresh(student)
        assert self.network is not None
        for mine, theirs in zip(self.network.modules(), student.modules(), strict=True):
            mine.training = theirs.training  # parts the user has frozen since are frozen here, too
        started = self.boundaries.tasks > 1 if self.config.start is None else now >= self.config.start
        return self.network if started else None

    def parameters(self) -> int:
        """Parameters kept besides the student: none with unit lag, where the teacher is the student before the step."""
        if self.network is None or (self.config.policy == "every" and self.config.every == 1):
            return 0
        return sum(p.numel() for p in self.network.parameters())

    def state_dict(self) -> dict[str, object]:
        """The copy; the learner saves the state of the policy."""
        return {"network": None if self.network is None else dict(self.network.state_dict())}

    def load_state_dict(self, state: State, student: nn.Module) -> None:
        """Restore what `state_dict` returned; the student gives its structure."""
        self.network = None
        if state["network"] is not None:
            self.refresh(student)
            assert self.network is not None
            self.network.load_state_dict(mapping(state["network"]))

    @torch.no_grad()
    def refresh(self, student: nn.Module) -> None:
        """Be a copy of the student as it is."""
        if self.network is None:
            self.network = frozen_copy(student)
            return
        # Tensor by tensor, because unit lag copies before every batch; the old ones stay as they are, to go back to.
        for mine, theirs in (
            (self.network.parameters(), student.parameters()),
            (self.network.buffers(), student.buffers()),
        ):
            for kept, fresh in zip(mine, theirs, strict=True):
                kept.data = fresh.clone()


def _classes(trained: Iterable[int]) -> frozenset[int]:
    """Class numbers, of whatever kind they are: those of tensors and arrays do not compare with plain ones."""
    try:
        found = frozenset(int(label) for label in trained)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"trained is {brief(trained)}; expected True, or the classes that the network knows, such as [0, 1]"
        ) from error
    if min(found, default=0) < 0:
        raise InputError(f"trained names the class {min(found)}; expected classes from 0 on")
    return found


class TaughtLearner(Learner):
    """What learners with a teacher share: it is told about boundaries, counted and saved."""

    boundaries: Boundaries

    def __init__(
        self,
        network: nn.Module,
        lag: LagConfig,
        learning_rate: float,
        optimizer: Optimizer | None = None,
        seed: int = 0,
        trained: bool | Iterable[int] = False,
    ) -> None:
        """`trained` says that the network knows all its classes already, or which: the first batch is a new task."""
        super().__init__(network, learning_rate, optimizer, seed)
        self.teacher = Teacher(lag)
        self.boundaries = self.teacher.boundaries
        self._knows_all = trained is True
        if trained is not False:
            known = range(output_layers(network)[0].out_features) if trained is True else trained
            self.boundaries.go_on(_classes(known), lag.start or 0)

    def check(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Also that the network has an output for every class that it is said to know."""
        x, y = super().check(x, y)
        highest = max(self.boundaries.seen_classes, default=0)
        if highest >= self.classes and self._knows_all:  # the layer defined last was not that of the logits
            self.boundaries.go_on(range(self.classes), self.boundaries.batches)
        elif highest >= self.classes:
            raise InputError(
                f"trained names the class {highest} but the network has {self.classes} outputs; expected classes from "
                f"0 to {self.classes - 1}"
            )
        return x, y

    @property
    def is_its_network(self) -> bool:
        """The teacher is a copy."""
        return True

    def kept_networks(self) -> list[nn.Module]:
        """The teacher."""
        return [] if self.teacher.network is None else [self.teacher.network]

    def remember(self) -> list[Undo]:
        """The teacher, too."""
        found, network = [*super().remember(), undo.attributes(self.teacher)], self.teacher.network
        if network is None:
            return found
        # It may be used, and so its running statistics move, before the student takes its first step.
        return [*found, undo.memory(network), undo.KeptBuffers(network.modules()).put_back]

    def check_state(self) -> None:
        """The teacher's running statistics, too."""
        super().check_state()
        if not self._buffers.now() or self.teacher.network is None:
            return
        named = list(self.teacher.network.named_buffers())
        if not all_finite(buffer for _, buffer in named):
            for (name, mine), theirs in zip(named, self.network.buffers(), strict=True):
                if not torch.equal(mine.isfinite(), theirs.isfinite()):
                    check_finite(mine, f"the teacher: {name_of_buffer(name)}")

    def memory(self) -> Memory:
        """The teacher's parameters."""
        return self.with_features(Memory(parameters=self.teacher.parameters()))

    def state_dict(self) -> dict[str, object]:
        """The network, its optimizer and the teacher."""
        return super().state_dict() | {"teacher": self.teacher.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self.teacher.load_state_dict(mapping(state["teacher"]), self.network)
