"""Where tasks begin: a learner infers it from its batches, or is told.

The paper's remark that "every T batches" equals "when a batch contains novel classes" holds only if the first batch of
a task shows all its classes; a batch of ten shows all of five classes with probability 0.52. The policy `novel`
therefore takes a class that appears within 40 images of a boundary as a late one of the same task: 40 images miss one
of five classes in 1 task out of 1,500.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from torch import Tensor

from ...checks import brief, check_choices
from ...errors import ConfigError
from ...storage.state import State, integer, integers

SPACING = 40  # images, by default
MOST = 10**12  # batches or images: anything larger is a typo


@dataclass(frozen=True)
class BoundaryConfig:
    """What counts as the beginning of a task."""

    part: ClassVar[str] = "learner.tasks"

    policy: Literal["every", "novel", "boundary"] = "novel"
    """every: once per `every` batches. novel: before a batch with a new class. boundary: when boundary() is called."""

    every: int | None = None
    """T, batches per task (policy every); if unset, a run takes the task length of its stream, and a loop of your own
    goes by new classes."""

    spacing: int | None = None
    """Minimum images between boundaries (policy novel), so late classes of a task do not start one; if unset, 40."""

    def __post_init__(self) -> None:
        check_choices(self, self.part)
        if self.every is not None and not 1 <= self.every <= MOST:
            raise ConfigError(
                f"{self.part}.every is {brief(self.every)}; expected at least 1 batch, and at most {MOST:,}"
            )
        if self.spacing is not None and not 1 <= self.spacing <= MOST:
            raise ConfigError(
                f"{self.part}.spacing is {brief(self.spacing)}; expected at least 1 image, and at most {MOST:,}"
            )
        if self.every is not None and self.policy != "every":
            raise ConfigError(
                f"{self.part}.every is {self.every} but the policy is {self.policy}, which does not count batches; "
                "set the policy to every, or leave it out"
            )
        if self.spacing is not None and self.policy != "novel":
            raise ConfigError(
                f"{self.part}.spacing is {self.spacing} but the policy is {self.policy}, which does not look at "
                "classes; set the policy to novel, or leave it out"
            )

    def for_stream(self, task_lengths: Sequence[int]) -> Self:
        """T from the stream, if it is unset.

        Tasks of different lengths have no single T: then each boundary is announced.
        """
        if self.policy != "every" or self.every is not None:
            return self
        if len(set(task_lengths)) == 1:
            return replace(self, every=task_lengths[0])
        return replace(self, policy="boundary")


class Boundaries:
    """Counts tasks as they begin."""

    def __init__(self, config: BoundaryConfig) -> None:
        # A run fills in the length of its tasks; in a loop of one's own, new classes must do.
        self.config = replace(config, policy="novel") if (config.policy, config.every) == ("every", None) else config
        self.batches = 0  # seen so far
        self.tasks = 0  # begun so far
        self.ahead = False  # the next batch was announced to begin a task
        self.earlier_classes: frozenset[int] = frozenset()  # seen before the current batch
        self._images = 0  # of the latest task
        self._wondered = False
        self._told = False  # somebody announces tasks
        self._seen: frozenset[int] = frozenset()

    @property
    def seen_classes(self) -> frozenset[int]:
        """All classes so far."""
        return self._seen

    def go_on(self, classes: Iterable[int], batches: int) -> None:
        """As if a task with these classes had been seen, of so many batches."""
        self._seen, self.tasks, self.batches, self.ahead = frozenset(classes), 1, batches, True

    def before(self, labels: Tensor) -> bool:
        """Look at the next batch, and return whether it begins a task. The first batch always does."""
        self.earlier_classes = self._seen
        new_classes = set(labels.tolist()) - self._seen
        begins = self._begins(bool(new_classes))
        self._told |= self.ahead
        if new_classes and not begins:
            self._wonder(min(new_classes))
        if begins:
            self.tasks += 1
            self._images = 0
        self._seen |= new_classes
        self._images += len(labels)
        self.ahead = False
        self.batches += 1
        return begins

    def _begins(self, novel: bool) -> bool:
        if self.tasks == 0 or self.ahead:
            return True
        if self.config.policy == "every":
            assert self.config.every is not None
            return self.batches % self.config.every == 0
        return self.config.policy == "novel" and novel and self._images >= (self.config.spacing or SPACING)

    def _wonder(self, label: int) -> None:
        """Say it once if boundaries are to be announced, and nobody does."""
        forgotten = self.config.policy == "boundary" and not self._told and self.tasks == 1
        if forgotten and self._images >= SPACING and not self._wondered:
            self._wondered = True
            warnings.warn(
                f"class {label} is new after {self._images} images of the first task, and boundary() was not called; "
                f"call it before each task, or use policy novel for {self.config.part}",
                stacklevel=6,
            )

    def state_dict(self) -> dict[str, object]:
        """The state of the policy."""
        return {
            "batches": self.batches,
            "tasks": self.tasks,
            "ahead": self.ahead,
            "images": self._images,
            "seen": sorted(self._seen),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        self.batches, self.tasks = integer(state["batches"]), integer(state["tasks"])
        self.ahead, self._images = state["ahead"] is True, integer(state["images"])
        self._seen = frozenset(integers(state["seen"]))
