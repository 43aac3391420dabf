"""What minimal filtering of learning brings on CIFAR10: steps with and without it take turns, so noise hits both.

    python scripts/filtered_learning.py [--rounds 25]

Made-up images, one torch thread as in a run on two cores; ARM's two networks have a thread each. Medians, in
milliseconds. Recall itself, in plans, is filtered either way.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from statistics import median

import torch

from autorecall import ARMConfig, LagConfig
from autorecall.commands.measure import seconds_of
from autorecall.presets import PRESETS

ROWS = ("naive", "lwf", "er-200", "er-mir-200", "gem", "arm")
WARM_UP = 3


def both(row: str, rounds: int) -> tuple[float, float]:
    """The median step without and with filtered learning."""
    config = PRESETS[row].config
    settings = config.learner
    if isinstance(settings, ARMConfig):
        settings = replace(settings, lag=LagConfig("every", 10**6, start=0))
    torch.manual_seed(0)
    learner = settings.for_stream((WARM_UP,)).build(config.network.build((3, 32, 32), 10), 0)
    if not learner._filtered:
        raise SystemExit("there are no compiled kernels, or the processor has no AVX2")
    times: dict[bool, list[float]] = {False: [], True: []}
    for number in range(WARM_UP + 2 * rounds):
        learner._filtered = bool(number % 2)
        x, y = torch.rand(10, 3, 32, 32), torch.arange(10) % 2 + (0 if number < WARM_UP else 2)
        taken = seconds_of(partial(learner.observe, x, y))
        if number >= WARM_UP:
            times[learner._filtered].append(taken)
    return median(times[False]), median(times[True])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25, help="steps of each kind")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for name in ROWS:
        without, filtered = both(f"cifar10/{name}", chosen.rounds)
        print(f"cifar10/{name} {1e3 * without:.0f} without, {1e3 * filtered:.0f} with: {without / filtered:.2f}")


if __name__ == "__main__":
    main()
