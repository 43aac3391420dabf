"""One config -> one run folder: config.json, history.csv, result.json, and checkpoints while it runs."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import nn

from .. import __version__, own
from ..config import ARRAYS, RunConfig
from ..data import OWN, Dataset, Split
from ..errors import ConfigError
from ..learners.base import Learner
from ..learners.shared.inspection import count_outputs
from ..recall.kernels import can_call
from ..recall.winograd import Winograd
from ..storage.extensible import is_foreign
from ..stream import Stream, Task
from ..torch_state import cores, limited_threads, own_random_state
from .folder import RunStatus, held
from .loop import Observer, RunLoop, few_of_each_class
from .result import Lesson, Result

VERSIONS = ("torch", "numpy")
MOST_ACCURACIES = 2_000_000  # of all tests, up to 32 bytes each: more would outgrow what is read (storage/files.py)


def run(
    preset: str,
    config: RunConfig,
    dataset: Dataset,
    folder: str | Path | None = None,
    observer: Observer | None = None,
    fresh: bool = False,
    stop: Callable[[], bool] = lambda: False,
    keep_learner: bool | None = False,
) -> Result:
    """Train a learner on its stream, test it after every task, and write the run folder if one is given.

    An unfinished run in the folder resumes from its last checkpoint and ends as if it had never been interrupted; a
    finished run's result is returned. A folder belongs to one config and one dataset: any other is refused, and so is
    a folder with other files. `fresh` moves a run of the same name aside and starts over. When `stop` returns True, the
    run is saved and ends with an InterruptedRunError. `keep_learner` saves the learner at the end, for `load`: what it
    keeps, such as images, is then in the folder. With None it is saved if it keeps no image.

    Everything that can be refused is refused before the first file is written; result.json is written last.
    """
    if dataset.name != config.dataset:  # then the config alone does not say what was learned
        config = replace(config, dataset=ARRAYS, image_size=None, test_share=None, val_share=None, skip_broken=False)
    threads, observer = config.threads or cores(), observer or Observer()
    # Batches are small: a network is no faster on many threads, and with half of them another can run alongside.
    with own_random_state(config.seed), limited_threads(max(1, threads // 2)):
        stream = Stream(dataset, config.stream, config.fraction, config.seed)
        _check_accuracies(len(stream), config.curve_points)
        learner = build_learner(config, dataset, stream)
        tested = getattr(dataset, config.split)
        _check_tested(tested, stream, config, dataset.classes)
        if config.test_images is not None:
            tested = few_of_each_class(tested, config.test_images)
        if is_foreign(type(config.network)):
            _check_outputs(learner, stream, dataset.classes)
        check_batches(learner, *stream)
        status = RunStatus(
            preset, config, dataset.fingerprint(), threads, versions(), machine_of(learner.network, config.device)
        )
        if dataset.shares != (config.test_share, config.val_share):
            status.lessons = [Lesson.of(dataset)]  # by which another day knows them again
        loop = RunLoop(status, stream, learner, tested, dataset, observer, stop, fresh, keep_learner)
        if folder is None:
            return loop.finish()
        with held(Path(folder), fresh, observer.warned) as place:
            return place.finished(status) or loop.finish_in(place)


def build_learner(config: RunConfig, dataset: Dataset, stream: Stream) -> Learner:
    """The learner around a freshly initialised network."""
    own.check_own("network", config.network)
    own.check_own("learner", config.learner)
    network = own.build_network(config.network, dataset.input_shape, len(dataset.classes)).to(device(config.device))
    learner = own.build_learner(config.learner.for_stream(stream.task_lengths), network, config.seed)
    learner.threads = config.threads
    return learner


def device(name: str) -> torch.device:
    """A torch device that can be used here."""
    try:
        found = torch.device(name)
        torch.empty(1, device=found).add_(1).item()
    except Exception as error:  # each backend fails in its own way, some on import
        raise ConfigError(f"device is {name!r}, which torch cannot use here; expected one such as cpu") from error
    return found


def versions() -> dict[str, str]:
    """Those that the last digits may depend on."""
    own = {"python": platform.python_version(), "autorecall": __version__}
    return own | {name: _installed(name) for name in VERSIONS}


@cache
def _installed(name: str) -> str:
    return importlib.metadata.version(name)


def machine_of(network: nn.Module, device: str) -> dict[str, str]:
    """What the last digits depend on besides versions and threads: the same sums are added in another order."""
    kernels = "compiled" if can_call(torch.empty(0, device=device)) else "torch"
    if kernels == "compiled" and any(map(Winograd.suits, network.modules())):
        kernels = "compiled, with minimal filtering where it suits"
    return {
        "processor": platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "kernels": kernels,
    }


def _check_accuracies(tasks: int, curve_points: int) -> None:
    """Every test has one for each task: after each of them, and once more for each point of the curve."""
    within = curve_points // tasks
    count = tasks * (tasks + (tasks * max(1, within) if curve_points else 0) + (within > 0))
    if count > MOST_ACCURACIES:
        raise ConfigError(
            f"the stream has {tasks:,} tasks and curve_points is {curve_points:,}, which takes {count:,} accuracies; "
            f"expected {MOST_ACCURACIES:,} at most: choose fewer tasks, or fewer or no curve points"
        )


def _check_tested(split: Split, stream: Stream, config: RunConfig, classes: Sequence[str]) -> None:
    missing = sorted({c for task in stream for c in task.classes} - set(np.unique(split.labels).tolist()))
    if missing:
        shared = config.split == "val" and config.dataset in OWN
        raise ConfigError(
            f"the {config.split} split has no image of class {classes[missing[0]]:.80}, so its accuracy cannot be "
            f"measured; add images{', or raise val_share' * shared}"
        )


def _check_outputs(learner: Learner, stream: Stream, classes: Sequence[str]) -> None:
    """Refuse a network without an output for each class now, not when the stream comes to the class."""
    x, _ = next(iter(stream[0]))
    outputs = count_outputs(learner.network, learner.prepare(learner.received(x[:1])))
    if outputs != len(classes):
        raise ConfigError(f"the network has {outputs} outputs; expected {len(classes)}, one for each class")


def check_batches(learner: Learner, *tasks: Task) -> None:
    """Let the learner refuse the first batch, or a single image if a task has a batch of one."""
    x, y = next(iter(tasks[0]))
    learner.check(x, y)
    if any(len(task.order) % task.batch_size == 1 or task.batch_size == 1 for task in tasks):
        learner.check(x[:1], y[:1])
