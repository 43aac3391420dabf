"""Automatic Recall Machines (Ji, Henriques, Tuytelaars and Vedaldi 2020), Algorithm 1.

After a step on the real batch, the student and its earlier copy (the teacher) find inputs on which they disagree most,
and the student learns the teacher's answers on them. No image is kept, no generator trained.
MNIST-5k, seeds 0-4: accuracy 57.3 ± 2.4, forgetting 25.2 ± 4.0 (paper 56.3 ± 2.6, 21.8 ± 1.6).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..ascent import ascend
from ..recall import TERMS, RecallConfig, Recalled, initial_images, recall
from .base import Learner
from .recalling import RecallingConfig, RecallLearner


@dataclass(frozen=True)
class ARMConfig(RecallingConfig, RecallConfig):
    """Automatic Recall Machines. Defaults are the paper's values for MNIST."""

    method: ClassVar[str] = "arm"

    def build(self, network: nn.Module, seed: int, task_lengths: tuple[int, ...]) -> Learner:
        """The learner of a run, its lag taken from the stream."""
        return ARM(network, replace(self, lag=self.lag.for_stream(task_lengths)), seed=seed)


class ARM(RecallLearner):
    """Recall what student and teacher disagree on most."""

    config: ARMConfig
    terms = TERMS

    def __init__(
        self,
        network: nn.Module,
        config: ARMConfig | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(network, config or ARMConfig(), optimizer, seed)
        self._channels_last = self._channels_last and self.config.engine == "fast"

    def start(self, x: Tensor, present_classes: Tensor, keep_copies: bool) -> Recalled:
        """Images of the real batch, or noise."""
        return initial_images(x, self.config, self.generator, keep_copies)

    def recall(
        self, recalled: Recalled, present_classes: Tensor, teacher: nn.Module
    ) -> tuple[Recalled, dict[str, float]]:
        """Ascend the recall objective (equation 7)."""
        if self.config.engine == "plain":
            return recall(self.network, teacher, recalled, present_classes, self.config)
        return ascend(self.network, teacher, recalled, present_classes, self.classes, self.config, self.side_by_side)
