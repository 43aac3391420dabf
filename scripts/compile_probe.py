"""Would torch.compile make recall faster? Times one step of the ascent on CIFAR10's network, eager and compiled.

    python scripts/compile_probe.py [STEPS]

One network on one thread, as in a run on two cores: logits of ten distinct images and the gradient at the images.
"copies counted" is what `autorecall` does, with batch-norm in C. The compiled ones have torch's own batch-norm, which
a compiler can fuse: less work than ours, so the gain here is the most it could be. All take turns; the first pass, with
compilation, is reported separately.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from autorecall.networks import ResNet18Config
from autorecall.recall.copies import forward


def step(logits_of: Callable[[Tensor], Tensor], images: Tensor, at_logits: Tensor) -> float:
    """Seconds for one pass forward and back."""
    started = time.perf_counter()
    images = images.detach().requires_grad_()
    torch.autograd.grad(logits_of(images), images, at_logits)
    return time.perf_counter() - started


def main() -> None:
    """Compile, take turns, report."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network: nn.Module = ResNet18Config().build((3, 32, 32), 10).requires_grad_(False)
    images = torch.rand(10, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    at_logits, counts = torch.randn(10, 10), torch.tensor([12, 8, 10, 10, 11, 9, 10, 10, 13, 7])
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "eager, copies counted": lambda x: forward(network, x, counts),
        "eager, torch's batch-norm": network,
        "compiled": torch.compile(network),
        "compiled, max-autotune": torch.compile(network, mode="max-autotune-no-cudagraphs"),
    }
    warm_up = {name: step(way, images, at_logits) for name, way in ways.items()}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(steps):
        for name, way in ways.items():
            taken[name].append(step(way, images, at_logits))
    for name, seconds in taken.items():
        low, middle, high = (1e3 * q for q in statistics.quantiles(seconds, n=4))
        print(f"{name:28} {middle:6.1f} ms ({low:.1f}-{high:.1f}), first {warm_up[name]:.1f} s")


if __name__ == "__main__":
    main()
