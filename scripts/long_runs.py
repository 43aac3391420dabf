"""What very long runs cost to save and to resume, and how that grows with their steps: not at all, it should be.

python scripts/long_runs.py

One run over a million made-up inputs of four numbers, one per batch, with a learner that learns nothing: only the run
itself takes time. It is stopped after 10³, 10⁵ and 10⁶ steps, and each time resumed and stopped ten more times, a step
later.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from torch import Tensor, nn

from autorecall import Dataset, Learner, LearnerConfig, Observer, RunConfig, from_arrays, run
from autorecall.commands.measure import Timing
from autorecall.errors import InterruptedRunError
from autorecall.networks import MLPConfig
from autorecall.stream import StreamConfig

STOPS = (10**3, 10**5, 10**6)
REPEATS = 10


@dataclass(frozen=True)
class IdleConfig(LearnerConfig):
    """No settings."""

    method: ClassVar[str] = "idle"

    def build(self, network: nn.Module, seed: int) -> Learner:
        """The learner for a run."""
        return Idle(network, learning_rate=0.1, seed=seed)


class Idle(Learner):
    """Has a state, as every learner, and leaves it as it is."""

    def observe(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """Nothing is checked."""
        return self.learn(x, y)

    def learn(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """Nothing is learned."""
        return {"loss": 1 / 3}


class Until(Observer):
    """Stops a run after a step, and notes when it was ready to learn and when it was told to stop."""

    def __init__(self, last: int) -> None:
        self.last, self.now, self.ready, self.told = last, 0, 0.0, 0.0

    def resumed(self, step: int, steps: int) -> None:
        """The next step can begin."""
        self.ready = time.perf_counter()

    def step(self, step: int, steps: int, task: int, numbers: object) -> None:
        """A batch was learned."""
        self.now = step

    def __call__(self) -> bool:
        self.told = time.perf_counter()
        return self.now >= self.last


def made_up() -> Dataset:
    """A little more than the last stop needs; two classes, one task."""
    inputs = np.random.default_rng(0).random((STOPS[-1] + 2 * REPEATS, 4), dtype=np.float32)
    pair = inputs, np.arange(len(inputs)) % 2
    return from_arrays(pair, (inputs[:10], pair[1][:10]))


def stopped(data: Dataset, config: RunConfig, folder: Path, last: int) -> tuple[float, float]:
    """Run to a step; the seconds until the first one could begin, and those to save the last."""
    until, begun = Until(last), time.perf_counter()
    try:
        run("own/long", config, data, folder, until, stop=until)
    except InterruptedRunError:
        return until.ready - begun, time.perf_counter() - until.told
    raise AssertionError("the run ended before it was stopped")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure checkpoints of very long runs.")
    parser.add_argument("--most", type=int, default=STOPS[-1], help="leave out stops after more steps")
    most = parser.parse_args().most
    data = made_up()
    config = RunConfig("arrays", MLPConfig((2,)), StreamConfig(2, batch_size=1), IdleConfig(), threads=1)
    print(f"{'steps':>9} {'history':>10} {'checkpoint':>12} {'to save':>16} {'to resume':>16} {'memory':>10}")
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".long-runs-") as place:
        folder = Path(place) / "run"
        for steps in (stop for stop in STOPS if stop <= most):
            stopped(data, config, folder, steps)
            times = [stopped(data, config, folder, steps + again) for again in range(1, REPEATS + 1)]
            resuming, saving = (Timing.of(list(seconds)) for seconds in zip(*times, strict=True))
            size = max(path.stat().st_size for path in folder.glob("checkpoints/step-*"))
            history = (folder / "history.csv").stat().st_size
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            print(
                f"{steps:9,} {history / 1e6:7.1f} MB {size:6,} bytes {_milliseconds(saving)} {_milliseconds(resuming)} "
                f"{memory / 1e3:7,.0f} MB",
                flush=True,
            )


def _milliseconds(timing: Timing) -> str:
    return f"{1e3 * timing.seconds:5.1f} ({1e3 * timing.low:.0f}-{1e3 * timing.high:.0f}) ms"


if __name__ == "__main__":
    main()
