"""The learners: one method a file, each with its config. A new method is added to the two lists here."""

from .arm import ARM, ARMConfig, Recollection
from .base import Learner, Memory
from .distill import Distill, DistillConfig
from .naive import Naive, NaiveConfig
from .teacher import LagConfig

LearnerConfig = NaiveConfig | DistillConfig | ARMConfig

__all__ = [
    "ARM",
    "ARMConfig",
    "Distill",
    "DistillConfig",
    "LagConfig",
    "Learner",
    "LearnerConfig",
    "Memory",
    "Naive",
    "NaiveConfig",
    "Recollection",
]
