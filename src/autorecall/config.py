"""One run as one typed value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .errors import ConfigError
from .learners import LearnerConfig
from .networks import NetworkConfig
from .schema import decode
from .stream import StreamConfig

DatasetName = Literal["mnist", "mnist-full", "cifar10", "miniimagenet", "folder", "arrays"]


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides the numbers of a run, and how often it is saved."""

    dataset: DatasetName
    """mnist is the embedded MNIST-5k of the paper; folder is your own, one sub-folder of images a class;
    arrays are given from Python."""

    network: NetworkConfig
    """The network that is trained."""

    stream: StreamConfig
    """The order in which it sees the data."""

    learner: LearnerConfig
    """The method that trains it."""

    fraction: float = 1.0
    """Keep this first part of every task, for a quick look."""

    split: Literal["test", "val"] = "test"
    """What accuracy is measured on; choose hyper-parameters on val."""

    image_size: int | None = None
    """Height and width that images of the dataset folder are brought to; none: 32."""

    seed: int = 0
    """Seed of the initial weights, of the learner's draws and, where the stream has none of its own, of the order."""

    device: str = "cpu"
    """The torch device to train on, such as cpu or cuda."""

    threads: int | None = None
    """Threads to use; none: one for each core. The same number gives the same result."""

    checkpoint_seconds: float = 60.0
    """Seconds between two checkpoints within a task; one is written at the end of every task as well."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.fraction) and 0 < self.fraction <= 1):
            raise ConfigError(f"fraction is {self.fraction}; expected a number above 0 and at most 1")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed is {self.seed}; expected a whole number from 0 to 2**63 - 1")
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise ConfigError(f"threads is {self.threads}; expected 1 to 1024")
        if not (math.isfinite(self.checkpoint_seconds) and self.checkpoint_seconds >= 0):
            raise ConfigError(f"checkpoint_seconds is {self.checkpoint_seconds}; expected a number of at least 0")
        if self.image_size is not None and self.dataset != "folder":
            raise ConfigError(f"image_size is {self.image_size} but {self.dataset} has a size of its own; leave it out")
        if self.image_size is not None and not 1 <= self.image_size <= 1024:
            raise ConfigError(f"image_size is {self.image_size}; expected 1 to 1024")


def from_json(values: Mapping[str, object]) -> RunConfig:
    """A config from what `to_json` gave; every wrong, missing or unknown field gives one sentence."""
    config = decode(RunConfig, values, "config")
    assert isinstance(config, RunConfig)
    return config
