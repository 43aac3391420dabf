"""What runs take: measured once on two cores of an AMD EPYC with AVX2, and scaled to the speed of this machine."""

from __future__ import annotations

from pathlib import Path

import torch

from ..config import RunConfig
from ..data.folders import MINIIMAGENET_IMAGES, count_miniimagenet
from ..errors import DataError
from ..networks.descriptor import DescriptorConfig
from ..networks.fourier import FourierConfig
from ..networks.patches import PatchesConfig
from ..presets import PRESETS, paper_steps
from ..torch_state import limited_threads
from .measure import seconds_of

NAIVE = 0.066  # seconds of a naive step with the paper's ResNet18, there
STEPS = 500  # of a dataset that the paper does not have
TESTS = {"mnist": 2, "cifar10": 150, "miniimagenet": 2200}  # seconds for all tests of a run, half of them for its curve
FIXED = (DescriptorConfig, FourierConfig, PatchesConfig)  # networks whose features do not change
FIXED_TESTS = 5  # seconds, as features of tested images are kept
ON_FEATURES = 3  # perceptrons on fixed features against those on digits
LARGER = 7  # images of 84 × 84 against 32 × 32

# Milliseconds per step on one thread, by the name after the slash; what is not named takes as long as its method.
# On CIFAR10, ARM and ADI (in the third task) are by scripts/iteration_times.py on another such machine, where a naive
# step took 67, GEN-MIR by a run on a Xeon with AVX-512 beside another run, and the ablations are ARM's by the sizes
# that `autorecall bench` measures.
# Those of slda, gaussians and patches are of a Xeon with AVX-512, where a naive step on MNIST takes 1.4; patches on
# MiniImageNet is a guess by the area of its images.
MNIST: dict[str, float] = {
    **{"naive": 1.3, "stationary": 1.3, "lwf": 2.4, "arm": 16, "adi": 30, "slda": 4.6, "gen": 150, "gen-mir": 660},
    **{"gaussians": 3.9, "patches": 2},
    **{"er": 2.1, "er-50": 2.1, "er-25": 2.1, "er-mir": 4.3, "er-mir-50": 4.3, "er-mir-25": 4.3, "mean-shift": 5},
}
CIFAR10: dict[str, float] = {
    **{"naive": 70, "stationary": 70, "lwf": 100, "arm": 880, "adi": 2250, "slda": 5.5, "gen": 1600, "gen-mir": 14000},
    **{"gaussians": 5, "patches": 8.1},
    **{"er-200": 130, "er-100": 130, "er-mir-200": 280, "er-mir-100": 280, "icarl": 410, "gem": 530, "mean-shift": 190},
    **{"ablation-20-steps": 1430, "ablation-5-steps": 640, "ablation-noise": 7150},
    **{"ablation-recall-2-times": 1740, "ablation-recall-4-times": 3480},
}
MINIIMAGENET: dict[str, float] = {
    "slda": 20,
    "gaussians": 20,
    "patches": 80,
    "er-500": 2700,
    "er-100": 2700,
    "er-mir-500": 5900,
    "er-mir-100": 5900,
}
KNOWN: dict[str, dict[str, float]] = {"mnist": MNIST, "cifar10": CIFAR10, "miniimagenet": MINIIMAGENET}


def seconds(preset: str, config: RunConfig) -> float:
    """About how long a run takes on one thread of the reference machine."""
    dataset, _, name = preset.partition("/")
    known = KNOWN.get(dataset, {})
    usual = PRESETS[preset].config if preset in PRESETS else None
    method = "" if usual is None else usual.learner.method
    milliseconds = known.get(name) or known.get(method)
    if milliseconds is None and "naive" in known:  # a method that has not been measured
        milliseconds = known["naive"]
    elif milliseconds is None:
        milliseconds = LARGER * CIFAR10.get(name, CIFAR10.get(method, CIFAR10["naive"]))
    tests = TESTS.get(dataset, TESTS["mnist"]) * (1 if config.curve_points else 0.5)
    if isinstance(config.network, FIXED):
        tests = min(tests, FIXED_TESTS)
        if usual is None or not isinstance(usual.network, FIXED):
            milliseconds = ON_FEATURES * MNIST.get(name, MNIST.get(method, MNIST["naive"]))
    return milliseconds / 1e3 * (paper_steps(config) or STEPS * config.fraction) + tests


def share_here(dataset: str, folder: Path | None) -> float:
    """How much of a dataset there is to learn from: whoever has MiniImageNet may have a part of it."""
    if dataset != "miniimagenet":
        return 1.0
    try:
        return count_miniimagenet(folder) / MINIIMAGENET_IMAGES or 1.0
    except DataError:  # an estimate needs no data
        return 1.0


def slowness() -> float:
    """How many times as long a step takes on this machine; a second's work."""
    config = PRESETS["cifar10/naive"].config
    with limited_threads(1), torch.random.fork_rng():
        learner = config.learner.build(config.network.build((3, 32, 32), 10), 0)
        x, y = torch.rand(10, 3, 32, 32), torch.arange(10)
        best: float = min(seconds_of(lambda: learner.observe(x, y)) for _ in range(8))
        return best / NAIVE


def duration(seconds: float) -> str:
    """Words for a length of time.

    >>> [duration(s) for s in (20, 130, 4000, 90_000)]
    ['1 min', '2 min', '1.1 h', '25 h']
    """
    if seconds < 3570:
        return f"{max(1, round(seconds / 60))} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 10 else f"{hours:.0f} h"
