"""What recall costs, as ratios measured within one run: machines differ and are shared, ratios carry over.

Contenders take turns, so a slow moment of the machine hits them alike; figures are medians, spreads are quartiles.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import data
from ..config import RunConfig
from ..data import Split
from ..errors import DataError
from ..learners.adi import ADIConfig
from ..learners.arm import ARM, ARMConfig
from ..learners.base import Learner
from ..learners.shared.teacher import LagConfig
from ..presets import PRESETS
from ..recall import reference
from ..recall.batch import Recalled
from ..runs.loop import images_at_once
from ..stream import as_batch
from ..torch_state import cores, limited_threads
from .process import keep_freed_memory

Batch = tuple[Tensor, Tensor]
WARM_UP = 2  # iterations before timing: threads start, memory is first touched
CURVES: dict[str, Sequence[int]] = {  # each size is varied with the others as in the paper
    "M, recalled images": (10, 30, 100, 300, 1000),
    "S, ascent steps": (5, 10, 20, 40),
    "N, real images": (5, 10, 20, 40),
    "classes": (10, 50, 100, 200),
    "image size": (32, 64, 84),
}


@dataclass(frozen=True)
class Timing:
    """Seconds per iteration: the median, and the quartiles around it."""

    seconds: float
    low: float
    high: float

    @staticmethod
    def of(seconds: Sequence[float]) -> Timing:
        """Summarise; with very few, the extremes serve as quartiles."""
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
    """naive, literal ARM (copies kept, the equations as written) and ARM, with the paper's settings, in turns."""
    config = PRESETS[f"{dataset}/arm"].config
    batches, real = _batches(dataset, config)
    recalling = always_recalling(config)
    learners: dict[str, Learner] = {
        "naive": _learner(PRESETS[f"{dataset}/naive"].config),
        "literal": _literal(config, recalling),
        "arm": arm(config, recalling),
    }
    turns = {"naive": 5 * rounds, "literal": literal_rounds, "arm": rounds}
    times = _taking_turns(learners, batches, turns, progress)
    return Iterations(real, *(Timing.of(times[name]) for name in ("naive", "literal", "arm")))


def growth(progress: Callable[[], None], repeats: int = 3) -> dict[str, dict[int, Timing]]:
    """How the time of ARM with CIFAR10's network grows with each of its sizes, the others as in the paper."""
    curves: dict[str, dict[int, Timing]] = {}
    for name, sizes in CURVES.items():
        contenders = {size: _sized(name, size) for size in sizes}
        times: dict[int, list[float]] = {size: [] for size in sizes}
        for turn in range(repeats + 1):
            for size, (learner, x, y) in contenders.items():
                seconds = seconds_of(partial(learner.observe, x, y))
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
    recalling = replace(always_recalling(config), recalled_images=images, ascent_steps=steps)
    learner = recalling.build(_network(config, (3, side, side), classes), 0)
    return learner, torch.rand(count, 3, side, side), torch.arange(count) % classes


def peak_memory(progress: Callable[[], None]) -> dict[str, float]:
    """Peak resident memory in MB that iterations need beyond the learner itself, each in its own process.

    Empty if the system cannot tell: only Linux has a peak that can be reset.
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
    code = f"from autorecall.commands.measure import print_peak; print_peak({images}, {iterations}, {tasks}, {literal})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return float(done.stdout)


def print_peak(images: int, iterations: int, tasks: int, literal: bool) -> None:
    """Run by `peak_memory` in its own process; a teacher is copied for every task."""
    config = PRESETS["cifar10/arm"].config
    lag = LagConfig("every", max(1, iterations // tasks), start=0)
    recalling = replace(always_recalling(config), recalled_images=images, lag=lag)
    learner = _literal(config, recalling) if literal else arm(config, recalling)
    keep_freed_memory()
    with limited_threads(max(1, cores() // 2)):
        before = _memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        for _ in range(iterations):
            learner.observe(torch.rand(10, 3, 32, 32), torch.arange(10))
    print(_memory("VmHWM") - before)


def _memory(name: str) -> float:
    """A memory figure of this process in MB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return int(kilobytes) * 1024 / 1e6


@dataclass(frozen=True)
class Overhead:
    """A learner's step, and a bare torch loop that learns the same."""

    observe: Timing
    bare: Timing

    @property
    def ratio(self) -> float:
        """How many times as long `observe` takes."""
        return self.observe.seconds / self.bare.seconds


def overheads(progress: Callable[[], None], rounds: int = 400) -> dict[str, Overhead]:
    """What a step of naive SGD and of experience replay costs on MNIST, beside a loop without any library."""
    batches, _ = _batches("mnist", PRESETS["mnist/naive"].config)
    found = {}
    for name, row, replays in (("naive", "mnist/naive", False), ("er", "mnist/er-50", True)):
        config = PRESETS[row].config
        work = {"observe": _learner(config).observe, "bare": bare_loop(config, replays)}
        times: dict[str, list[float]] = {each: [] for each in work}
        for turn in range(rounds + rounds // 10):
            for each, step in work.items():
                seconds = seconds_of(partial(step, *batches[turn % len(batches)]))
                if turn >= rounds // 10:  # the first are the warm-up
                    times[each].append(seconds)
        found[name] = Overhead(Timing.of(times["observe"]), Timing.of(times["bare"]))
        progress()
    return found


def bare_loop(config: RunConfig, replays: bool) -> Callable[[Tensor, Tensor], object]:
    """The textbook's lines: a gradient step on the batch, or on the batch and ten of fifty kept images."""
    network = _network(config, (1, 28, 28)).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    images, labels = torch.rand(50, 1, 28, 28), torch.arange(50) % 10

    def step(x: Tensor, y: Tensor) -> list[float]:
        optimizer.zero_grad()
        losses = [F.cross_entropy(network(x), y)]
        losses[0].backward()  # type: ignore[no-untyped-call]
        if replays:
            drawn = torch.randperm(50)[:10]
            losses.append(F.cross_entropy(network(images[drawn]), labels[drawn]))
            losses[1].backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return [loss.item() for loss in losses]

    return step


def others(progress: Callable[[], None], repeats: int = 5) -> dict[str, Timing]:
    """Seconds of what takes longest elsewhere: steps of ADI and GEN-MIR, and the test of one large image."""
    inverting = PRESETS["cifar10/adi"].config
    assert isinstance(inverting.learner, ADIConfig)
    recalling = replace(inverting.learner, lag=LagConfig("every", 10**6, start=0))
    adi = _learner(replace(inverting, learner=recalling))
    gen_mir = _learner(PRESETS["mnist/gen-mir"].config)
    large = PRESETS["miniimagenet/naive"].config
    tested = large.learner.build(_network(large, (3, 84, 84), 100), 0)
    count = images_at_once((3, 84, 84))
    image, digit, images = torch.rand(10, 3, 32, 32), torch.rand(10, 1, 28, 28), torch.rand(count, 3, 84, 84)
    times: dict[str, list[float]] = {}
    for turn in range(repeats + 2):
        labels = torch.arange(10) % 2 + (0 if turn < 2 else 8)  # the classes from before are then recalled
        timed = {
            "a step of ADI on CIFAR10": seconds_of(partial(adi.observe, image, labels)),
            "a step of GEN-MIR on MNIST": seconds_of(partial(gen_mir.observe, digit, labels)),
        }
        with limited_threads(cores()):
            tested.predict(images)
            timed["the test of an 84 x 84 image"] = seconds_of(partial(tested.predict, images)) / count
        if turn >= 2:
            for name, seconds in timed.items():
                times.setdefault(name, []).append(seconds)
        progress()
    return {name: Timing.of(seconds) for name, seconds in times.items()}


def page_faults(progress: Callable[[], None], repeats: int = 5) -> float | None:
    """Pages of memory that an iteration of ARM on CIFAR10 asks of the system; None if it cannot tell."""
    try:
        import resource
    except ImportError:  # e.g. Windows
        return None
    config = PRESETS["cifar10/arm"].config
    learner, x = arm(config, always_recalling(config)), torch.rand(10, 3, 32, 32)
    for turn in range(repeats + 3):
        if turn == 3:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        learner.observe(x, torch.arange(10))
        progress()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / repeats


@dataclass(frozen=True)
class Report:
    """Everything measured."""

    cifar10: Iterations
    mnist: Iterations
    overheads: dict[str, Overhead]
    others: dict[str, Timing]
    page_faults: float | None
    growth_seconds: dict[str, dict[int, Timing]]
    peak_memory_mb: dict[str, float]
    threads: int

    def as_json(self) -> dict[str, object]:
        """All fields; ratios are also under dotted names, such as cifar10.cost_over_naive."""
        values = asdict(self)
        for name, measured in (("cifar10", self.cifar10), ("mnist", self.mnist)):
            for ratio in ("speedup_over_literal", "cost_over_naive"):
                values[f"{name}.{ratio}"] = values[name][ratio] = getattr(measured, ratio)
        for name, overhead in self.overheads.items():
            values[f"{name}.observe_over_bare"] = values["overheads"][name]["ratio"] = overhead.ratio
        return values


def measure(progress: Callable[[str, float], None]) -> Report:
    """The whole benchmark, about four minutes; `progress` is told what is being done and how far it is."""

    def telling(what: str, steps: int) -> Callable[[], None]:
        done = iter(range(1, steps + 1))
        progress(what, 0)
        return lambda: progress(what, next(done) / steps)

    with limited_threads(max(1, cores() // 2)):  # as in a run
        return Report(
            cifar10=iterations("cifar10", 20, 4, telling("iterations on CIFAR10", 124)),
            mnist=iterations("mnist", 60, 20, telling("iterations on MNIST", 380)),
            overheads=overheads(telling("steps beside a bare loop", 2)),
            others=others(telling("ADI, GEN-MIR and tests", 7)),
            page_faults=page_faults(telling("page faults", 8)),
            growth_seconds=growth(telling("growth with M, S, N, classes, image size", 20)),
            peak_memory_mb=peak_memory(telling("memory", 5)),
            threads=cores(),
        )


def _learner(config: RunConfig) -> Learner:
    network = _network(config, (1, 28, 28) if config.dataset == "mnist" else (3, 32, 32))
    return config.learner.for_stream((1,)).build(network, 0)


def arm(config: RunConfig, recalling: ARMConfig) -> ARM:
    """ARM with these settings and the network of a run."""
    learner = _learner(replace(config, learner=recalling))
    assert isinstance(learner, ARM)
    return learner


class LiteralARM(ARM):
    """Algorithm 1 as written: copies kept, the equations of `recall.reference`, torch's own memory layout."""

    copies = "keep"

    def __init__(self, network: nn.Module, config: ARMConfig) -> None:
        super().__init__(network.to(memory_format=torch.contiguous_format), config)  # type: ignore[call-overload]
        self._convolutional = False

    def ascent(self, start: Recalled, present_classes: Tensor, teacher: nn.Module) -> reference.Ascent:
        """The reference instead of the fast loop."""
        return reference.Ascent(self.network, teacher, start, self.objective(start, present_classes))


def _literal(config: RunConfig, recalling: ARMConfig) -> ARM:
    return LiteralARM(arm(config, recalling).network, recalling)


def _network(config: RunConfig, shape: tuple[int, ...], classes: int = 10) -> nn.Module:
    torch.manual_seed(0)
    return config.network.build(shape, classes)


def always_recalling(config: RunConfig) -> ARMConfig:
    """The paper's settings, but recalling from the first batch on, with a teacher that is not refreshed."""
    assert isinstance(config.learner, ARMConfig)
    return replace(config.learner, lag=LagConfig("every", 10**6, start=0))


def _batches(dataset: str, config: RunConfig) -> tuple[list[Batch], bool]:
    """Real batches if there is data, made-up ones otherwise; only the values differ, not the work."""
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

    Literal ARM has all threads to itself, torch's default; a run gives half of them to each network. Changing their
    number slows the next iterations, so those are not counted for either.
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
                times[name].append(seconds_of(work))
            warm_up()
        else:
            times[name].append(seconds_of(work))
        progress()
    return times


def seconds_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
