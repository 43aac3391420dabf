"""Milliseconds of one iteration of a few rows, the best of many: to compare two checkouts, let them take turns.

    python scripts/iteration_times.py [--rounds 25] [--threads 2] [--device cuda]

Made-up images of the right size, recall from the first batch on, with four earlier classes. With two threads, as in a
run on two cores, torch has one, and the other runs the teacher beside the student. On a GPU the clock is stopped when
it has finished; between the first and the last step of an ascent nothing waits for it.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch

from autorecall import ADIConfig, ARMConfig, LagConfig
from autorecall.commands.measure import seconds_of
from autorecall.presets import PRESETS

ROWS = {"mnist": ((1, 28, 28), 12), "cifar10": ((3, 32, 32), 1)}  # shape of an image, iterations per round


def best(row: str, shape: tuple[int, ...], iterations: int, threads: int, device: torch.device) -> float:
    """Seconds of the fastest iteration; the first three are the warm-up."""
    config = PRESETS[row].config
    settings = config.learner
    if isinstance(settings, ARMConfig | ADIConfig):
        settings = replace(settings, lag=LagConfig("every", 10**6, start=0))
    torch.manual_seed(0)
    learner = settings.for_stream((1,)).build(config.network.build(shape, 10).to(device), 0)
    learner.threads = threads
    times = []
    for number in range(iterations):
        # As in the third of five tasks: the more classes came before, the more pairs of image and class ADI has.
        labels = torch.arange(10) % 4 if number < 2 else 4 + torch.arange(10) % 2
        x, y = torch.rand(10, *shape).to(device), labels.to(device)

        def observe(x: torch.Tensor = x, y: torch.Tensor = y) -> None:
            learner.observe(x, y)
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        times.append(seconds_of(observe))
    return min(times[3:])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25, help="more rounds, more iterations to find the best of")
    parser.add_argument("--threads", type=int, default=1, help="as many as a run with --threads would use")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"), help="cpu, or cuda for a GPU")
    chosen = parser.parse_args()
    if chosen.device.type == "cuda" and not torch.cuda.is_available():
        parser.error(f"--device is {chosen.device} but torch finds no GPU; use cpu")
    if chosen.threads < 1:
        parser.error(f"--threads is {chosen.threads}; expected 1 or more")
    torch.set_num_threads(max(1, chosen.threads // 2))
    for dataset, (shape, iterations) in ROWS.items():
        for method in ("arm", "adi", "naive"):
            seconds = best(f"{dataset}/{method}", shape, 3 + chosen.rounds * iterations, chosen.threads, chosen.device)
            print(f"{dataset}/{method} {1e3 * seconds:.1f} ms")


if __name__ == "__main__":
    main()
