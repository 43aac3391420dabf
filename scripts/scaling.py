"""What a step of ARM costs for other networks and images, and what that means for ImageNet-1k and a ResNet50.

    python scripts/scaling.py        # on an idle machine, about two minutes

Operations are counted (torch's flop counter, a multiplication and an addition are two). Seconds are measured, and so is
memory: the most that a process of its own held beyond what it held before the learner was made. The last line draws on
from the operations per second that were reached: an estimate, not a measurement.
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from autorecall.commands.measure import always_recalling, seconds_of
from autorecall.learners.arm import ARM
from autorecall.networks import ResNet18Config
from autorecall.presets import PRESETS
from autorecall.torch_state import cores, limited_threads

IMAGES, STEPS = 10, 10  # N and S of the paper
CASES = [(20, 32, 10), (10, 32, 10), (40, 32, 10), (64, 32, 10), (20, 64, 10), (20, 84, 100), (20, 32, 1000)]
IMAGENET = 1_281_167  # training images
RESNET50 = 8.2  # GFLOP per image of 224 × 224, forward
PARAMETERS = 25.6e6
DAY = 86_400


def forward_gflop(network: nn.Module, side: int) -> float:
    """Operations of one image's way through a network."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(torch.rand(2, 3, side, side))
    return float(counter.get_total_flops()) / 2 / 1e9


def per_step(gflop: float) -> float:
    """Operations of one step: each ascent step takes both networks forward and back to the images.

    A pass back to the images costs as much as one forward, one to the weights as well. Real batch, recalled batch and
    real batch again are learned (3 each), and the teacher answers the last two.
    """
    return IMAGES * gflop * (2 * STEPS * 2 + 3 * 3 + 2)


@dataclass(frozen=True)
class Cost:
    """Of one network and one size of images."""

    parameters: int
    gflop: float
    seconds: float
    megabytes: float


def cost(case: tuple[int, int, int]) -> Cost:
    """Measured in a process of its own, since a process does not say how much memory it needs at the moment."""
    channels, side, classes = case
    torch.manual_seed(0)
    network = ResNet18Config(channels).build((3, side, side), classes)
    step = per_step(forward_gflop(network, side))
    before = held_megabytes()
    learner = ARM(network, replace(always_recalling(PRESETS["cifar10/arm"].config), recalled_images=100))
    x, y = torch.rand(IMAGES, 3, side, side), torch.arange(IMAGES)
    with limited_threads(max(1, cores() // 2)):
        times = [seconds_of(partial(learner.observe, x, y)) for _ in range(5)]
    count = sum(p.numel() for p in network.parameters())
    return Cost(count, step, statistics.median(times[2:]), held_megabytes() - before)


def held_megabytes() -> float:
    """The most that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def main() -> None:
    """Measure and print."""
    rates = []
    print("| base channels | image | classes | parameters | GFLOP per step | seconds | GFLOP/s | MB |")
    print("|---:" * 8 + "|")
    for case in CASES:
        with multiprocessing.get_context("spawn").Pool(1) as alone:
            found = alone.apply(cost, (case,))
        rates.append(found.gflop / found.seconds)
        channels, side, classes = case
        print(
            f"| {channels} | {side} × {side} | {classes:,} | {found.parameters:,} | {found.gflop:.1f} | "
            f"{found.seconds:.2f} | {rates[-1]:.0f} | {found.megabytes:.0f} |",
            flush=True,
        )
    rate = statistics.median(rates)
    total = per_step(RESNET50) * IMAGENET / IMAGES
    days, hours = total / rate / DAY, total / 50e3 / 3600
    print(
        f"ImageNet-1k once through a ResNet50: {total / 1e6:.0f} PFLOP, {days:.0f} days at the {rate:.0f} GFLOP/s "
        f"of this machine, {hours:.1f} hours at 50 TFLOP/s; the teacher keeps {4 * PARAMETERS / 1e6:.0f} MB, as much "
        f"as {4 * PARAMETERS / (3 * 224 * 224):.0f} images of 224 x 224"
    )


if __name__ == "__main__":
    main()
