"""Where the time goes: a planned pass of recall, a step of GEN-MIR, `observe` of naive SGD, the test of a large image.

    python scripts/where_time_goes.py

The best of many passes for every single step, on one thread, so that a shared machine disturbs little.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from autorecall.commands.measure import bare_loop, seconds_of
from autorecall.learners.shared.modes import training
from autorecall.presets import PRESETS
from autorecall.recall.plan import Plans
from autorecall.recall.steps import Pass
from autorecall.runs.loop import images_at_once

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


def naive_observe(turns: int = 4000) -> tuple[float, float, dict[str, float]]:
    """Microseconds of `observe` on MNIST, of a loop without any library, and of what only `observe` does."""
    config = PRESETS["mnist/naive"].config
    torch.manual_seed(0)
    learner = config.learner.build(config.network.build((1, 28, 28), 10), 0)
    loop = bare_loop(config, replays=False)
    x, y = torch.rand(10, 1, 28, 28), torch.arange(10)
    learner.observe(x, y)

    def modes() -> None:
        with training(learner.network, learner._layers):
            pass

    work: dict[str, Callable[[], object]] = {
        "observe": partial(learner.observe, x, y),
        "loop": partial(loop, x, y),
        "is the state finite (check_state)": learner.check_state,
        "is the batch usable (check)": partial(learner.check, x, y),
        "how to undo the step (remember)": learner.remember,
        "the list of modules": lambda: list(learner.network.modules()),
        "train mode, and back": modes,
    }
    best = dict.fromkeys(work, float("inf"))
    for _ in range(turns):
        for name, part in work.items():
            best[name] = min(best[name], 1e6 * seconds_of(part))
    return best.pop("observe"), best.pop("loop"), best


def large_test(passes: int = 8) -> tuple[float, float, float, float, float]:
    """A test of 84 × 84 images on one thread: ms per image, those of convolutions, of batch-norm and ReLU; GFLOP per
    image, and the GFLOP/s of a large matrix product here."""
    torch.manual_seed(0)
    network = PRESETS["miniimagenet/naive"].config.network.build((3, 84, 84), 100).eval()
    count = images_at_once((3, 84, 84))
    x = torch.rand(count, 3, 84, 84).contiguous(memory_format=torch.channels_last)
    network(x)
    total = seconds = float("inf")
    spent: dict[str, float] = {}
    square = torch.rand(2048, 2048)
    with torch.no_grad():
        with FlopCounterMode(display=False) as counter:
            network(x)
        for _ in range(passes):
            with profile(activities=[ProfilerActivity.CPU]) as watched:
                network(x)
            found = {event.key: event.self_cpu_time_total / 1e3 / count for event in watched.key_averages()}
            if sum(found.values()) < total:
                total, spent = sum(found.values()), found
            seconds = min(seconds, seconds_of(partial(torch.mm, square, square)))
    convolutions = sum(ms for name, ms in spent.items() if "conv" in name)
    norms = sum(ms for name, ms in spent.items() if "norm" in name or name in ("aten::clamp_min", "aten::relu"))
    return total, convolutions, norms, counter.get_total_flops() / count / 1e9, 2 * 2048**3 / seconds / 1e9


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
    observe, loop, parts = naive_observe()
    print(f"naive SGD on MNIST: observe {observe:.0f} µs, a bare loop {loop:.0f} µs; what observe does beside")
    for name, microseconds in sorted(parts.items(), key=lambda item: -item[1]):
        print(f"  {name}: {microseconds:.0f} µs")
    total, convolutions, norms, flops, rate = large_test()
    print(
        f"test of an 84 x 84 image: {total:.1f} ms, {convolutions:.1f} of them convolutions ({flops:.2f} GFLOP, "
        f"{1e3 * flops / convolutions:.0f} GFLOP/s; a large matrix product: {rate:.0f}), "
        f"{norms:.1f} batch-norm and ReLU"
    )


if __name__ == "__main__":
    main()
