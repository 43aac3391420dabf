"""The teacher: an earlier copy of the student, and the policy that says when to take a new one.

The paper's lag T is the length of a task. Its remark that this equals "updating when a batch contains novel classes"
holds only if the first batch of a task shows all its classes; of five classes a batch of ten shows all with
probability 0.52. The policy `novel` therefore keeps a minimum distance between two copies.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from ..settings import check_choices, check_counts
from .base import Learner, Memory
from .modes import without_user_hooks
from .state import State, integer, mapping


@dataclass(frozen=True)
class LagConfig:
    """When the teacher becomes a fresh copy of the student."""

    policy: Literal["every", "novel", "boundary"] = "novel"
    """every: each `every` batches. novel: before a batch with a class never seen. boundary: when told by boundary()."""

    every: int | None = None
    """T, the batches between two copies (policy every); none in a run: the batches of a task of its stream."""

    start: int | None = None
    """Batches before recall begins; none: with the second copy (in a run with policy every: the second task)."""

    spacing: int = 10
    """Fewest batches between two copies (policy novel), so that late classes of one task do not refresh it again."""

    def __post_init__(self) -> None:
        check_choices(self, "learner.lag")
        check_counts(self, "learner.lag", "spacing")
        if self.every is not None and self.every < 1:
            raise ConfigError(f"learner.lag.every is {self.every}; expected at least 1 batch")
        if self.start is not None and self.start < 0:
            raise ConfigError(f"learner.lag.start is {self.start}; expected at least 0 batches")

    def for_stream(self, task_lengths: Sequence[int]) -> LagConfig:
        """T and the start of recall from the stream, where they are left open.

        Tasks of different lengths have no single T: then the teacher is refreshed at each boundary.
        """
        if self.policy != "every":
            return self
        start = task_lengths[0] if self.start is None else self.start
        if self.every is not None:
            return replace(self, start=start)
        if len(set(task_lengths)) == 1:
            return replace(self, every=task_lengths[0], start=start)
        return replace(self, policy="boundary", start=self.start)


class Teacher:
    """An earlier copy of a network, refreshed by a lag policy; frozen, but its running batch statistics move."""

    def __init__(self, config: LagConfig) -> None:
        if config.policy == "every" and config.every is None:
            raise ConfigError("learner.lag.every is not set; give the number of batches between two copies")
        self.config = config
        self.network: nn.Module | None = None
        self.batches = 0  # observed so far
        self.copies = 0
        self.copied_at = 0
        self.boundary_ahead = False
        self.seen: set[int] = set()

    def follow(self, student: nn.Module, labels: Tensor) -> nn.Module | None:
        """Before a batch: copy the student if it is time, and return the teacher, or None before recall starts."""
        new_classes = set(labels.tolist()) - self.seen
        if self._is_time(bool(new_classes)):
            self._copy(student)
            self.copies += 1
            self.copied_at = self.batches
        self.seen |= new_classes
        self.boundary_ahead = False
        if self.network is not None:
            for mine, theirs in zip(self.network.modules(), student.modules(), strict=True):
                mine.training = theirs.training  # parts that the user froze since are frozen here as well
        start, now = self.config.start, self.batches
        self.batches += 1
        started = self.copies > 1 if start is None else now >= start
        return self.network if started else None

    def parameters(self) -> int:
        """Parameters kept beside the student: none with unit lag, where the teacher is the student before the step."""
        if self.network is None or (self.config.policy == "every" and self.config.every == 1):
            return 0
        return sum(p.numel() for p in self.network.parameters())

    def state_dict(self) -> dict[str, object]:
        """The copy and where its policy stands."""
        return {
            "network": None if self.network is None else dict(self.network.state_dict()),
            "batches": self.batches,
            "copies": self.copies,
            "copied_at": self.copied_at,
            "boundary_ahead": self.boundary_ahead,
            "seen": sorted(self.seen),
        }

    def load_state_dict(self, state: State, student: nn.Module) -> None:
        """Take back what `state_dict` gave; the student lends its shape."""
        self.network = None
        if state["network"] is not None:
            self._copy(student)
            assert self.network is not None
            self.network.load_state_dict(mapping(state["network"]))
        self.batches, self.copies = integer(state["batches"]), integer(state["copies"])
        self.copied_at = integer(state["copied_at"])
        self.boundary_ahead = bool(state["boundary_ahead"])
        seen = state["seen"]
        assert isinstance(seen, list)
        self.seen = {integer(label) for label in seen}

    def _is_time(self, novel: bool) -> bool:
        if self.network is None or self.boundary_ahead:
            return True
        if self.config.policy == "every":
            assert self.config.every is not None
            return self.batches % self.config.every == 0
        return self.config.policy == "novel" and novel and self.batches - self.copied_at >= self.config.spacing

    @torch.no_grad()
    def _copy(self, student: nn.Module) -> None:
        if self.network is None:
            with without_user_hooks(student):
                self.network = copy.deepcopy(student).requires_grad_(False)
            return
        # In place, because unit lag copies before every batch.
        for mine, theirs in (
            (self.network.parameters(), student.parameters()),
            (self.network.buffers(), student.buffers()),
        ):
            for kept, fresh in zip(mine, theirs, strict=True):
                kept.copy_(fresh)


class TaughtLearner(Learner):
    """What learners with a teacher have in common: it is told of boundaries, counted and saved."""

    def __init__(
        self,
        network: nn.Module,
        lag: LagConfig,
        learning_rate: float,
        optimizer: torch.optim.Optimizer | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(network, learning_rate, optimizer, seed)
        self.teacher = Teacher(lag)

    def boundary(self) -> None:
        """The next batch starts a task: the teacher is refreshed before it."""
        self.teacher.boundary_ahead = True

    def memory(self) -> Memory:
        """The teacher's parameters."""
        return Memory(parameters=self.teacher.parameters())

    def state_dict(self) -> dict[str, object]:
        """The network, its optimizer and the teacher."""
        return super().state_dict() | {"teacher": self.teacher.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Take back what `state_dict` gave."""
        super().load_state_dict(state)
        self.teacher.load_state_dict(mapping(state["teacher"]), self.network)
