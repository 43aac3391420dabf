"""Where the time of recall goes: the steps of a planned pass by their kind, and the operations of a step of GEN-MIR.

    python scripts/where_time_goes.py

The best of many passes for every single step, on one thread, so that a shared machine disturbs little.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial

import torch
from torch.profiler import ProfilerActivity, profile

from autorecall.commands.measure import seconds_of
from autorecall.presets import PRESETS
from autorecall.recall.plan import Plans
from autorecall.recall.steps import Pass

ROWS = {"cifar10": ((3, 32, 32), 60), "mnist": ((1, 28, 28), 600)}  # shape of an image, passes


@torch.no_grad()
def planned_pass(dataset: str, shape: tuple[int, ...], passes: int) -> dict[str, float]:
    """Milliseconds of one network's pass over ten images and back, by the kind of its steps."""
    torch.manual_seed(0)
    network = PRESETS[f"{dataset}/arm"].config.network.build(shape, 10)
    x = torch.rand(10, *shape).contiguous(memory_format=torch.channels_last)
    plan = Plans().of(network, x)
    assert plan is not None, "there are no compiled kernels"
    best: dict[tuple[str, int], float] = defaultdict(lambda: float("inf"))
    for _ in range(passes):
        run = Pass(1 + max(step.target for step in plan.steps), torch.full((10,), 0.1), 100, statistics=False)
        run.values[0] = x
        for number, step in enumerate(plan.steps):
            key = (f"{type(step).__name__}, forward", number)
            best[key] = min(best[key], seconds_of(partial(step.forward, run)))
        run.gradients[plan.steps[-1].target] = [torch.rand(10, 10)]
        for number, step in reversed(list(enumerate(plan.steps))):
            key = (f"{type(step).__name__}, back", number)
            best[key] = min(best[key], seconds_of(partial(step.backward, run)))
            run.values[step.target], run.gradients[step.target] = None, []
    found: dict[str, float] = defaultdict(float)
    for (kind, _), seconds in best.items():
        found[kind] += 1e3 * seconds
    return dict(found)


def gen_mir() -> tuple[float, float]:
    """Milliseconds that the processor spends on a step of GEN-MIR on MNIST, and those of its matrix products."""
    config = PRESETS["mnist/gen-mir"].config
    torch.manual_seed(0)
    learner = config.learner.for_stream((2,)).build(config.network.build((1, 28, 28), 10), 0)
    for task in range(2):
        for _ in range(2):
            learner.observe(torch.rand(10, 1, 28, 28), torch.arange(10) % 2 + 2 * task)
    with profile(activities=[ProfilerActivity.CPU]) as watched:
        learner.observe(torch.rand(10, 1, 28, 28), torch.arange(10) % 2 + 4)
    spent = {event.key: event.self_cpu_time_total / 1e3 for event in watched.key_averages()}
    return sum(spent.values()), spent["aten::mm"] + spent["aten::addmm"]


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    for dataset, (shape, passes) in ROWS.items():
        found = planned_pass(dataset, shape, passes)
        print(f"{dataset}, one network's pass over ten images and back: {sum(found.values()):.2f} ms")
        for kind, milliseconds in sorted(found.items(), key=lambda item: -item[1]):
            print(f"  {kind}: {milliseconds:.2f} ms")
    total, products = gen_mir()
    print(f"a step of GEN-MIR: {total:.0f} ms of the processor, {products:.0f} of them matrix products")


if __name__ == "__main__":
    main()
