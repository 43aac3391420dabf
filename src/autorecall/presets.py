"""Every row of the paper's tables that autorecall can run, as one typed value with the published figure beside it."""

from __future__ import annotations

from dataclasses import dataclass

from .config import DatasetName, RunConfig
from .errors import ConfigError
from .learners import ARMConfig, DistillConfig, LagConfig, LearnerConfig, NaiveConfig
from .networks import MLPConfig, NetworkConfig, ResNet18Config
from .schema import differences
from .stream import StreamConfig

DEFAULT = "mnist/arm"


@dataclass(frozen=True)
class Published:
    """A row of the paper. `spread` says what its ± means."""

    accuracy: float
    accuracy_spread: float
    forgetting: float | None = None
    forgetting_spread: float | None = None
    spread: str = "standard deviation, 5 runs"


@dataclass(frozen=True)
class Preset:
    """A row of a table: how to run it and what the paper found."""

    config: RunConfig
    published: Published | None


@dataclass(frozen=True)
class _Benchmark:
    """What all rows of one table share."""

    dataset: DatasetName
    network: NetworkConfig
    stream: StreamConfig
    stationary: StreamConfig

    def row(self, learner: LearnerConfig, published: Published, stationary: bool = False) -> Preset:
        stream = self.stationary if stationary else self.stream
        return Preset(RunConfig(self.dataset, self.network, stream, learner), published)


# MNIST draws a new order with every seed; the orders of the other two are the same for all seeds, as published.
# The sizes of MNIST's classes less the validation images: published MNIST-5k streams are cut from all of it.
_MNIST_POOL = (5627, 6405, 5660, 5824, 5550, 5150, 5622, 5952, 5558, 5652)
_MNIST = _Benchmark("mnist", MLPConfig(), StreamConfig(2, class_pool=_MNIST_POOL), StreamConfig(stationary=True))
_CIFAR10 = _Benchmark(
    "cifar10", ResNet18Config(), StreamConfig(2, order_seed=0), StreamConfig(stationary=True, order_seed=0)
)
_MINIIMAGENET = _Benchmark(
    "miniimagenet",
    ResNet18Config(),
    StreamConfig(5, passes=3, order_seed=0),
    StreamConfig(passes=3, stationary=True, order_seed=0),
)

# The paper's lag: T and the start of recall are the length of a task, left open here and taken from the stream.
_TASK_LAG = LagConfig(policy="every")

PRESETS: dict[str, Preset] = {
    "mnist/naive": _MNIST.row(NaiveConfig(0.05), Published(18.8, 0.5, 95.6, 2.7)),
    "mnist/stationary": _MNIST.row(NaiveConfig(0.05), Published(87.1, 0.6), stationary=True),
    "mnist/lwf": _MNIST.row(DistillConfig(0.05, 1.0, _TASK_LAG), Published(33.3, 2.5, 58.0, 1.7)),
    "mnist/arm": _MNIST.row(ARMConfig(side_by_side=False, lag=_TASK_LAG), Published(56.3, 2.6, 21.8, 1.6)),
    "cifar10/naive": _CIFAR10.row(NaiveConfig(0.1), Published(15.0, 3.1, 69.4, 4.7)),
    "cifar10/stationary": _CIFAR10.row(NaiveConfig(0.1), Published(55.2, 5.0), stationary=True),
    "cifar10/lwf": _CIFAR10.row(DistillConfig(0.01, 1.0, _TASK_LAG), Published(19.2, 0.3, 60.9, 3.9)),
    "cifar10/arm": _CIFAR10.row(
        ARMConfig(images=100, learning_rate=0.01, recall_rate=10.0, lag=_TASK_LAG), Published(26.4, 1.2, 8.07, 5.2)
    ),
    "miniimagenet/naive": _MINIIMAGENET.row(NaiveConfig(0.1), Published(3.80, 0.2, 51.2, 2.0)),
    "miniimagenet/stationary": _MINIIMAGENET.row(NaiveConfig(0.1), Published(25.2, 4.7), stationary=True),
    "miniimagenet/lwf": _MINIIMAGENET.row(DistillConfig(0.01, 2.0, _TASK_LAG), Published(4.89, 0.2, 41.6, 1.6)),
    "miniimagenet/arm": _MINIIMAGENET.row(
        ARMConfig(
            images=100,
            learning_rate=0.01,
            recall_rate=10.0,
            real_weight=2.0,
            diversity=1.0,
            uncertainty=1.0,
            lag=_TASK_LAG,
        ),
        Published(5.53, 0.8, 11.9, 2.7),
    ),
}


# Seeds are what a row averages over; the others say how numbers are computed, and change their last bits at most.
SAME_ROW = (
    "seed",
    "threads",
    "device",
    "checkpoint_seconds",
    "learner.side_by_side",
    "learner.engine",
    "learner.copies",
)


def changes(config: RunConfig, usual: RunConfig) -> dict[str, object]:
    """The settings in which a run differs from the usual one so that its figures cannot be compared."""
    return {name: value for name, value in differences(config, usual).items() if name not in SAME_ROW}


def preset(name: str) -> Preset:
    """A preset by its name."""
    if name not in PRESETS:
        raise ConfigError(f"there is no preset {name!r}; expected one of those that `autorecall list` prints")
    return PRESETS[name]
