"""One run as one typed value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .checks import LARGEST_SEED, brief, check_choices, is_finite
from .data import DATASETS, OWN
from .data.shares import wrong_shares
from .errors import ConfigError
from .learners.base import LearnerConfig
from .networks import NetworkConfig
from .stream import StreamConfig

ARRAYS = "arrays"  # the dataset of a run whose data came from Python
MOST_IMAGES = 10**9


@dataclass(frozen=True)
class RunConfig:
    """Everything that determines a run's numbers, and how often it is saved."""

    dataset: str
    """mnist (the paper's MNIST-5k, embedded), mnist-full, fashion-mnist (500 images per class), cifar10, miniimagenet;
    folder: your own images, one sub-folder per class, or npz: your own arrays."""

    network: NetworkConfig
    """The network to train."""

    stream: StreamConfig
    """The order in which the network sees data."""

    learner: LearnerConfig
    """The method that trains the network."""

    fraction: float = 1.0
    """Keep only this first part of every task, for a quick look."""

    split: Literal["test", "val"] = "test"
    """The images to measure accuracy on; choose hyper-parameters on val."""

    image_size: int | None = None
    """Height and width to resize images to (dataset folder only); if unset, 32."""

    seed: int = 0
    """Seeds the initial weights, the learner's draws and, unless the stream has its own seed, the order."""

    device: str = "cpu"
    """The torch device to train on, such as cpu or cuda."""

    threads: int | None = None
    """Threads to use; if unset, one per core. The same number gives the same result."""

    checkpoint_seconds: float = 60.0
    """Seconds between checkpoints within a task; one is also written at the end of every task."""

    curve_points: int = 50
    """Tests over the whole run for its curve of accuracy, most of them on a part of the images; 0 for none."""

    test_images: int | None = None
    """Measure accuracy on about this many images, as many of each class, for a quick look; if unset, on all."""

    test_share: float | None = None
    """Share of each class to test on, if your own data have no test images; if unset, 0.2."""

    val_share: float | None = None
    """Share of each class to validate on, if your own data have no validation images; if unset, 0.04, or none if they
    have test images."""

    skip_broken: bool = False
    """Leave out images that cannot be read (dataset folder only), and say how many."""

    def __post_init__(self) -> None:
        if self.dataset not in (*DATASETS, ARRAYS):
            raise ConfigError(f"dataset is {brief(self.dataset)}; expected one of {', '.join(DATASETS)}")
        check_choices(self, "")
        if not (is_finite(self.fraction) and 0 < self.fraction <= 1):
            raise ConfigError(f"fraction is {brief(self.fraction)}; expected a number above 0 and at most 1")
        if not 0 <= self.seed <= LARGEST_SEED:
            raise ConfigError(f"seed is {brief(self.seed)}; expected a whole number from 0 to 2**63 - 1")
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise ConfigError(f"threads is {brief(self.threads)}; expected 1 to 1024")
        if not (is_finite(self.checkpoint_seconds) and self.checkpoint_seconds >= 0):
            raise ConfigError(
                f"checkpoint_seconds is {brief(self.checkpoint_seconds)}; expected a number of at least 0"
            )
        if not 0 <= self.curve_points <= 10_000:
            raise ConfigError(f"curve_points is {brief(self.curve_points)}; expected 0 to 10,000")
        if self.test_images is not None and not 1 <= self.test_images <= MOST_IMAGES:
            raise ConfigError(f"test_images is {brief(self.test_images)}; expected 1 to {MOST_IMAGES:,}")
        self._check_own_data()

    def _check_own_data(self) -> None:
        if self.image_size is not None and self.dataset != "folder":
            raise ConfigError(
                f"image_size is {brief(self.image_size)} but {self.dataset} has a size of its own; leave it out"
            )
        if self.image_size is not None and not 1 <= self.image_size <= 1024:
            raise ConfigError(f"image_size is {brief(self.image_size)}; expected 1 to 1024")
        wrong = wrong_shares(self.test_share, self.val_share)
        if wrong is not None:
            raise ConfigError(wrong)
        for name in ("test_share", "val_share"):
            if getattr(self, name) is not None and self.dataset not in OWN:
                raise ConfigError(
                    f"{name} is {getattr(self, name)} but {self.dataset} has splits of its own; leave it out"
                )
        if self.skip_broken and self.dataset != "folder":
            raise ConfigError(f"skip_broken is set but {self.dataset} is not a folder of your own; leave it out")
