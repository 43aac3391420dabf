"""What recall costs, as ratios measured within one run: machines differ and are shared, ratios travel.

Contenders take turns, so that a slow moment of the machine hits them alike; figures are medians, spreads the quartiles.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from . import data
from .ascent import ascend, cores
from .checkpoint import Checkpoints
from .config import RunConfig
from .data import Split
from .errors import DataError
from .history import History
from .learners import ARM, ARMConfig, LagConfig, Learner
from .presets import PRESETS
from .progress import run_state
from .recall import initial_images
from .run_folder import Standing
from .stream import as_batch
from .torch_state import limited_threads

Batch = tuple[Tensor, Tensor]
WARM_UP = 2  # iterations before the first is timed: threads start, memory is first touched
CURVES: dict[str, Sequence[int]] = {  # every size is varied with the others as in the paper
    "M, recalled images": (10, 30, 100, 300, 1000),
    "S, ascent steps": (5, 10, 20, 40),
    "N, real images": (5, 10, 20, 40),
    "classes": (10, 50, 100, 200),
    "image size": (32, 64, 84),
}
HELP_RUNS = 5
CHECKPOINTS = 10
RUN_SIZES = {"cifar10": (4750, 5), "mnist": (500, 5)}  # steps and tasks of a whole run


@dataclass(frozen=True)
class Timing:
    """Seconds an iteration: the median, and the quartiles around it."""

    seconds: float
    low: float
    high: float

    @staticmethod
    def of(seconds: Sequence[float]) -> Timing:
        """Summarise; of very few, the extremes stand for the quartiles."""
        ordered = sorted(seconds)
        return Timing(statistics.median(ordered), ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4])


@dataclass(frozen=True)
class Iterations:
    """One online iteration of three learners on one dataset."""

    real_data: bool
    naive: Timing
    literal: Timing
    arm: Timing

    @property
    def speedup_over_literal(self) -> float:
        """Seconds of literal ARM / seconds of ARM."""
        return self.literal.seconds / self.arm.seconds

    @property
    def cost_over_naive(self) -> float:
        """Seconds of ARM / seconds of naive."""
        return self.arm.seconds / self.naive.seconds


def iterations(dataset: str, rounds: int, literal_rounds: int, progress: Callable[[], None]) -> Iterations:
    """naive, literal ARM (copies kept, the equations as they stand) and ARM, with the paper's settings, in turns."""
    config = PRESETS[f"{dataset}/arm"].config
    batches, real = _batches(dataset, config)
    recalling = _recalling(config.learner)
    learners: dict[str, Learner] = {
        "naive": _learner(PRESETS[f"{dataset}/naive"].config),
        "literal": _literal(config, recalling),
        "arm": _arm(config, recalling),
    }
    turns = {"naive": 5 * rounds, "literal": literal_rounds, "arm": rounds}
    times = _taking_turns(learners, batches, turns, progress)
    return Iterations(real, *(Timing.of(times[name]) for name in ("naive", "literal", "arm")))


def growth(progress: Callable[[], None], repeats: int = 3) -> dict[str, dict[int, Timing]]:
    """How an ARM iteration with CIFAR10's network grows with each of its sizes, all others as in the paper."""
    curves: dict[str, dict[int, Timing]] = {}
    for name, sizes in CURVES.items():
        contenders = {size: _sized(name, size) for size in sizes}
        times: dict[int, list[float]] = {size: [] for size in sizes}
        for turn in range(repeats + 1):
            for size, (learner, x, y) in contenders.items():
                seconds = _seconds(partial(learner.observe, x, y))
                if turn:  # the first is the warm-up
                    times[size].append(seconds)
            progress()
        curves[name] = {size: Timing.of(seconds) for size, seconds in times.items()}
    return curves


def _sized(name: str, size: int) -> tuple[Learner, Tensor, Tensor]:
    config = PRESETS["cifar10/arm"].config
    images, steps, count, classes, side = (
        size if name == sized else usual for sized, usual in zip(CURVES, (100, 10, 10, 10, 32), strict=True)
    )
    recalling = replace(_recalling(config.learner), images=images, steps=steps)
    learner = recalling.build(_network(config, (3, side, side), classes), 0, (1,))
    return learner, torch.rand(count, 3, side, side), torch.arange(count) % classes


def peak_memory(progress: Callable[[], None]) -> dict[str, float]:
    """Peak resident memory in MB that iterations need beyond the learner itself, each in a process of its own.

    Nothing where the system does not tell: only Linux has a peak that can be set back.
    """
    if not Path("/proc/self/clear_refs").exists():
        return {}
    found = {}
    for name, images, count, tasks, literal in (
        ("M=10", 10, 4, 1, False),
        ("M=100", 100, 4, 1, False),
        ("M=1000", 1000, 4, 1, False),
        ("M=100, 10 tasks", 100, 10, 10, False),
        ("literal, M=100", 100, 1, 1, True),
    ):
        found[name] = _peak(images, count, tasks, literal)
        progress()
    return found


def _peak(images: int, iterations: int, tasks: int, literal: bool) -> float:
    code = f"from autorecall.bench import print_peak; print_peak({images}, {iterations}, {tasks}, {literal})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return float(done.stdout)


def print_peak(images: int, iterations: int, tasks: int, literal: bool) -> None:
    """Run in a process of its own by `peak_memory`; a teacher is copied for every task."""
    config = PRESETS["cifar10/arm"].config
    lag = LagConfig("every", max(1, iterations // tasks), start=0)
    recalling = replace(_recalling(config.learner), images=images, lag=lag)
    learner = _literal(config, recalling) if literal else _arm(config, recalling)
    with limited_threads(max(1, cores() // 2)):
        before = _memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # sets the peak back
        for _ in range(iterations):
            learner.observe(torch.rand(10, 3, 32, 32), torch.arange(10))
    print(_memory("VmHWM") - before)


def _memory(name: str) -> float:
    """A figure of this process in MB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return int(kilobytes) * 1024 / 1e6


@dataclass(frozen=True)
class CheckpointCost:
    """What it costs to save a run as it goes."""

    seconds: Timing
    megabytes: float
    share: float
    """Of the time of a whole run, at the default interval and the ends of tasks."""


def checkpoint_cost(dataset: str, iteration_seconds: float, progress: Callable[[], None]) -> CheckpointCost:
    """Checkpoints of the dataset's ARM row as they are near its end, written below the working directory."""
    config = PRESETS[f"{dataset}/arm"].config
    learner = _arm(config, _recalling(config.learner))
    (x, y), *_ = _batches(dataset, config)[0]
    for _ in range(WARM_UP):
        numbers = learner.observe(x, y)
    steps, tasks = RUN_SIZES[dataset]
    history = History()
    for step in range(steps):
        history.add({"step": step, "task": tasks} | numbers)
    standing = Standing(f"{dataset}/arm", config, "0" * 64, cores(), {}, steps, [[0.0] * tasks] * tasks)
    times = []
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder:
        checkpoints = Checkpoints(Path(folder))
        _save(checkpoints, 0, standing, learner, history)
        for turn in range(1, CHECKPOINTS + 1):
            times.append(_seconds(partial(_save, checkpoints, turn, standing, learner, history)))
            progress()
        size = max(path.stat().st_size for path in checkpoints.folder.iterdir()) / 1e6
    cost, learning = Timing.of(times), steps * iteration_seconds
    written = learning / config.checkpoint_seconds + tasks - 1
    return CheckpointCost(cost, size, written * cost.seconds / (learning + written * cost.seconds))


def _save(checkpoints: Checkpoints, step: int, standing: Standing, learner: Learner, history: History) -> None:
    checkpoints.write(step, run_state(standing, learner, history))


def help_seconds() -> float:
    """Time to `autorecall --help`, a whole process."""
    command = [sys.executable, "-c", "from autorecall.cli import main; main()", "--help"]
    times = []
    for _ in range(HELP_RUNS):
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def recall_fraction_of_peak() -> float:
    """Floating-point operations a second of a CIFAR10 recall, over those of a large matrix product on all threads."""
    config = PRESETS["cifar10/arm"].config
    recalling = _recalling(config.learner)
    learner = _arm(config, recalling)
    x, y = torch.rand(10, 3, 32, 32), torch.arange(10)
    for _ in range(WARM_UP):
        learner.observe(x, y)
    teacher = learner.teacher.network
    assert teacher is not None
    start = initial_images(x.contiguous(memory_format=torch.channels_last), recalling, learner.generator, False)
    size = 2048
    matrix = torch.rand(size, size)
    recalls, products = [], []
    for _ in range(5):
        recalls.append(
            _seconds(lambda: ascend(learner.network, teacher, start, y, 10, recalling, learner.side_by_side))
        )
        with limited_threads(cores()):
            torch.mm(matrix, matrix)  # wakes the other threads
            products.append(_seconds(partial(torch.mm, matrix, matrix)))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        learner.predict(start.images)
    # Forward and back to the images cost the same, in both networks, at each step.
    operations = 4 * recalling.steps * int(counter.get_total_flops())
    return operations / statistics.median(recalls) / (2 * size**3 / statistics.median(products))


@dataclass(frozen=True)
class Report:
    """Everything that is measured."""

    cifar10: Iterations
    mnist: Iterations
    growth_seconds: dict[str, dict[int, Timing]]
    peak_memory_mb: dict[str, float]
    checkpoint: dict[str, CheckpointCost]
    recall_fraction_of_peak: float
    help_seconds: float
    threads: int

    def as_json(self) -> dict[str, object]:
        """All fields; the ratios stand under dotted names as well, such as cifar10.cost_over_naive."""
        values = asdict(self)
        for name, measured in (("cifar10", self.cifar10), ("mnist", self.mnist)):
            for ratio in ("speedup_over_literal", "cost_over_naive"):
                values[f"{name}.{ratio}"] = values[name][ratio] = getattr(measured, ratio)
        for name, cost in self.checkpoint.items():
            values |= {f"checkpoint.{name}.share": cost.share, f"checkpoint.{name}.megabytes": cost.megabytes}
        return values


def measure(progress: Callable[[str, float], None]) -> Report:
    """The whole benchmark, about two minutes; `progress` is told what is being done and how much of it is over."""

    def telling(what: str, steps: int) -> Callable[[], None]:
        done = iter(range(1, steps + 1))
        progress(what, 0)
        return lambda: progress(what, next(done) / steps)

    with limited_threads(max(1, cores() // 2)):  # as a run does it
        cifar10 = iterations("cifar10", 15, 2, telling("iterations on CIFAR10", 92))
        mnist = iterations("mnist", 60, 20, telling("iterations on MNIST", 380))
        saving = telling("checkpoints", 2 * CHECKPOINTS)
        return Report(
            cifar10=cifar10,
            mnist=mnist,
            checkpoint={
                "cifar10": checkpoint_cost("cifar10", cifar10.arm.seconds, saving),
                "mnist": checkpoint_cost("mnist", mnist.arm.seconds, saving),
            },
            growth_seconds=growth(telling("growth with M, S, N, classes, image size", 20)),
            peak_memory_mb=peak_memory(telling("memory", 5)),
            recall_fraction_of_peak=recall_fraction_of_peak(),
            help_seconds=help_seconds(),
            threads=cores(),
        )


def _learner(config: RunConfig) -> Learner:
    return config.learner.build(_network(config, (1, 28, 28) if config.dataset == "mnist" else (3, 32, 32)), 0, (1,))


def _arm(config: RunConfig, recalling: ARMConfig) -> ARM:
    learner = _learner(replace(config, learner=recalling))
    assert isinstance(learner, ARM)
    return learner


def _literal(config: RunConfig, recalling: ARMConfig) -> ARM:
    """Copies kept, the equations as they stand, in torch's own memory layout."""
    learner = _arm(config, replace(recalling, engine="plain", copies="keep"))
    learner.network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return learner


def _network(config: RunConfig, shape: tuple[int, ...], classes: int = 10) -> nn.Module:
    torch.manual_seed(0)
    return config.network.build(shape, classes)


def _recalling(learner: object) -> ARMConfig:
    """The paper's settings, recalling from the first batch on and with a teacher that is always a few batches old."""
    assert isinstance(learner, ARMConfig)
    return replace(learner, lag=LagConfig("every", 10**6, start=0))


def _batches(dataset: str, config: RunConfig) -> tuple[list[Batch], bool]:
    """Real batches where there is data, made ones otherwise; only the values differ, not the work."""
    try:
        split: Split = data.load(config.dataset, may_download=False).train
    except DataError:
        return [(torch.rand(10, 3, 32, 32), torch.arange(10)) for _ in range(8)], False
    order = np.random.default_rng(0).permutation(len(split))
    return [as_batch(split, order[start : start + 10]) for start in range(0, 80, 10)], True


def _taking_turns(
    learners: dict[str, Learner], batches: Sequence[Batch], turns: dict[str, int], progress: Callable[[], None]
) -> dict[str, list[float]]:
    """Seconds of each learner's iterations, spread evenly over the same stretch of time.

    Literal ARM has all threads to itself, as torch would have it; a run gives half of them to each network. Changing
    their number costs the next iterations something, so those are not counted, here as there.
    """
    supply = cycle(batches)

    def warm_up() -> None:
        for name in learners:
            if name != "literal":
                for _ in range(WARM_UP):
                    learners[name].observe(*next(supply))

    warm_up()
    times: dict[str, list[float]] = {name: [] for name in learners}
    plan = sorted((turn / turns[contender], contender) for contender in learners for turn in range(turns[contender]))
    for _, name in plan:
        work = partial(learners[name].observe, *next(supply))
        if name == "literal":
            with limited_threads(cores()):
                work()
                times[name].append(_seconds(work))
            warm_up()
        else:
            times[name].append(_seconds(work))
        progress()
    return times


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
