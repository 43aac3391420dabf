"""What autorecall costs besides its arithmetic: a checkpoint, `autorecall --help`, and recall's share of peak speed.

    python scripts/overheads.py

Checkpoints are those of the ARM rows near the end of a run, written under the working directory; their share is of the
time of a whole run, at the default interval and the ends of tasks. Leave the machine otherwise idle.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from autorecall.commands.measure import WARM_UP, Timing, always_recalling, arm, seconds_of
from autorecall.presets import PRESETS
from autorecall.recall.ascent import Ascent
from autorecall.runs.checkpoints import Checkpoints
from autorecall.runs.folder import RunStatus, checkpoint
from autorecall.runs.history import NAME, History
from autorecall.runs.loop import run_state
from autorecall.torch_state import cores, limited_threads

RUN_SIZES = {"cifar10": (4750, 5), "mnist": (500, 5)}  # steps and tasks of a whole run
SHAPES = {"cifar10": (3, 32, 32), "mnist": (1, 28, 28)}
REPEATS = 10


def checkpoint_cost(dataset: str) -> str:
    """Seconds and size of a checkpoint, and its share of a run."""
    config = PRESETS[f"{dataset}/arm"].config
    learner, (steps, tasks) = arm(config, always_recalling(config)), RUN_SIZES[dataset]
    observe = partial(learner.observe, torch.rand(10, *SHAPES[dataset]), torch.arange(10))
    for _ in range(WARM_UP):
        numbers = observe()
    learning = steps * statistics.median(seconds_of(observe) for _ in range(REPEATS))
    status = RunStatus(f"{dataset}/arm", config, "0" * 64, cores(), {}, {}, steps, [[0.0] * tasks] * tasks)
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".overheads-") as folder:
        checkpoints = Checkpoints(Path(folder))
        checkpoints.make_folder()
        history = History(Path(folder) / NAME, checkpoints.folder / NAME)

        def save(turn: int) -> None:
            for step in range(steps // 100):  # since the last checkpoint
                history.add({"step": step, "task": tasks} | numbers)
            checkpoints.write(turn, checkpoint(status, history.saved(), run_state(learner, "cpu")))

        save(0)
        cost = Timing.of([seconds_of(partial(save, turn)) for turn in range(1, REPEATS + 1)])
        size = max(path.stat().st_size for path in checkpoints.folder.iterdir()) / 1e6
    saving = (learning / config.checkpoint_seconds + tasks - 1) * cost.seconds
    return f"{size:.1f} MB in {1e3 * cost.seconds:.0f} ms, {100 * saving / (learning + saving):.2f} % of a run's time"


def help_seconds() -> float:
    """Time to `autorecall --help`, a whole process."""
    command = [sys.executable, "-c", "from autorecall.cli import main; main()", "--help"]
    work = partial(subprocess.run, command, check=True, capture_output=True)
    return statistics.median(seconds_of(work) for _ in range(REPEATS))


def recall_fraction_of_peak() -> float:
    """Floating-point operations per second of a CIFAR10 recall, over those of a large matrix product on all threads."""
    config = PRESETS["cifar10/arm"].config
    recalling = always_recalling(config)
    learner = arm(config, recalling)
    x, y = torch.rand(10, *SHAPES["cifar10"]).contiguous(memory_format=torch.channels_last), torch.arange(10)
    for _ in range(WARM_UP):
        learner.observe(x, y)
    teacher, start = learner.teacher.network, learner.start(x, y, keep_copies=False)
    assert teacher is not None
    assert start is not None
    objective = learner.objective(start, y)
    ascent = Ascent(learner.network, teacher, start, objective, learner.side_by_side, learner.plans)
    work = partial(ascent.climb, recalling.ascent_steps, recalling.recall_rate)
    size = 2048
    matrix = torch.rand(size, size)
    recalls, products = [], []
    for _ in range(5):
        recalls.append(seconds_of(work))
        with limited_threads(cores()):
            torch.mm(matrix, matrix)  # wakes the other threads
            products.append(seconds_of(partial(torch.mm, matrix, matrix)))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        learner.predict(start.images)
    # Forward and back to the images cost the same, in both networks, at each step.
    operations = 4 * recalling.ascent_steps * int(counter.get_total_flops())
    return operations / statistics.median(recalls) / (2 * size**3 / statistics.median(products))


def main() -> None:
    """Measure and print."""
    with limited_threads(max(1, cores() // 2)):  # as in a run
        for dataset in RUN_SIZES:
            print(f"a checkpoint of {dataset}/arm: {checkpoint_cost(dataset)}")
        print(f"recall reaches {100 * recall_fraction_of_peak():.0f} % of the speed of a large matrix product")
    print(f"autorecall --help takes {help_seconds():.3f} s")


if __name__ == "__main__":
    main()
