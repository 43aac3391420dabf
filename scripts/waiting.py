"""How long a test takes alone and on a busy machine, by how long torch's threads stay awake while they wait.

    python scripts/waiting.py [--rounds 3] [--spins 300000 1000]

Milliseconds for a batch of 50 test images on all cores, by the networks of the paper: alone, and beside one process for
each core that never rests. The median of so many rounds, which take turns. GNU's OpenMP looks 300,000 times by default;
0 is to sleep at once. `autorecall` has the number in commands/process.py. Leave the machine otherwise idle.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from autorecall.commands.process import SPINS, WAITS

CORES = os.cpu_count() or 1
CASES = {"mnist": ((1, 28, 28), 200), "cifar10": ((3, 32, 32), 20)}  # the shape of an image, and batches to measure


def measure() -> None:
    """Print the milliseconds of each case, in this process."""
    import torch

    from autorecall.presets import PRESETS
    from autorecall.recall.winograd import MinimalFiltering

    torch.set_num_threads(CORES)
    for dataset, (shape, batches) in CASES.items():
        network = PRESETS[f"{dataset}/arm"].config.network.build(shape, 10).eval()
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = torch.rand(50, *shape).contiguous(memory_format=torch.channels_last)
        with torch.no_grad(), MinimalFiltering():
            for number in range(3 + batches):
                if number == 3:
                    start = time.perf_counter()
                network(x)
        print(1e3 * (time.perf_counter() - start) / batches)


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """So many processes that never rest."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def measured(spins: int, beside: int) -> list[float]:
    """The milliseconds of each case, by a process of its own: OpenMP reads its settings once."""
    environment = {name: value for name, value in os.environ.items() if name not in WAITS}
    with neighbours(beside):
        done = subprocess.run(
            [sys.executable, __file__, "--measure"],
            env=environment | {"GOMP_SPINCOUNT": str(spins)},
            check=True,
            capture_output=True,
            text=True,
        )
    return [float(line) for line in done.stdout.split()]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    parser.add_argument("--spins", type=int, nargs="+", default=[300_000, SPINS], help="looks before sleep, to compare")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        measure()
        return
    if chosen.rounds < 1 or min(chosen.spins) < 0:
        parser.error("expected at least 1 round, and looks of 0 or more")
    cases = [(spins, beside) for spins in chosen.spins for beside in (0, CORES)]
    found: dict[tuple[int, int], list[list[float]]] = {case: [] for case in cases}
    for _ in range(chosen.rounds):
        for case in cases:
            found[case].append(measured(*case))
    for spins, beside in cases:
        times = zip(CASES, map(statistics.median, zip(*found[spins, beside], strict=True)), strict=True)
        words = ", ".join(f"{dataset} {milliseconds:.2f} ms" for dataset, milliseconds in times)
        print(f"{spins:,} looks, {f'beside {beside} processes' if beside else 'alone'}: {words}")


if __name__ == "__main__":
    main()
