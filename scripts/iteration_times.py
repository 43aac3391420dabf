"""Milliseconds of one iteration of a few rows, the best of many: to compare two checkouts, let them take turns.

    python scripts/iteration_times.py [ROUNDS]

Made-up images of the right size, one torch thread as in a run on two cores, recall from the first batch on.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial

import torch

from autorecall import ADIConfig, ARMConfig, LagConfig
from autorecall.commands.measure import seconds_of
from autorecall.presets import PRESETS

ROWS = {"mnist": ((1, 28, 28), 12), "cifar10": ((3, 32, 32), 1)}  # shape of an image, iterations per round


def best(row: str, shape: tuple[int, ...], iterations: int) -> float:
    """Seconds of the fastest iteration; the first three are the warm-up."""
    config = PRESETS[row].config
    settings = config.learner
    if isinstance(settings, ARMConfig | ADIConfig):
        settings = replace(settings, lag=LagConfig("every", 10**6, start=0))
    torch.manual_seed(0)
    learner = settings.for_stream((1,)).build(config.network.build(shape, 10), 0)
    times = []
    for number in range(iterations):
        labels = torch.arange(10) % 2 + (0 if number < 2 else 2)  # ADI recalls earlier classes that are not present
        times.append(seconds_of(partial(learner.observe, torch.rand(10, *shape), labels)))
    return min(times[3:])


def main() -> None:
    """Measure and print."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 25
    torch.set_num_threads(1)
    for dataset, (shape, iterations) in ROWS.items():
        for method in ("arm", "adi", "naive"):
            seconds = best(f"{dataset}/{method}", shape, 3 + rounds * iterations)
            print(f"{dataset}/{method} {1e3 * seconds:.1f} ms")


if __name__ == "__main__":
    main()
