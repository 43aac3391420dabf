"""Small networks, batches and looks into a learner, shared by the tests of learners."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn

from autorecall.learners import (
    ADI,
    ARM,
    ER,
    ERMIR,
    GEM,
    GEN,
    GENMIR,
    SLDA,
    ADIConfig,
    ARMConfig,
    BoundaryConfig,
    Distill,
    DistillConfig,
    ERConfig,
    ERMIRConfig,
    GEMConfig,
    GENConfig,
    GENMIRConfig,
    ICaRL,
    ICaRLConfig,
    LagConfig,
    Learner,
    Naive,
    NaiveConfig,
    SLDAConfig,
)
from autorecall.networks import MLPVAEConfig

CLASSES = 6
IMAGE = (2, 6, 5)
TAUGHT = ("lwf", "adi", "arm")
KEEPING = ("er", "er-mir", "gem", "icarl")  # those that keep images
METHODS = ("naive", *TAUGHT, *KEEPING, "gen", "gen-mir")  # those that descend on a loss
ALL = (*METHODS, "slda")
OFTEN = LagConfig("every", every=2, start=2)
Make = Callable[[], nn.Module]


def mlp(seed: int = 0, inputs: int = 60) -> nn.Module:
    """A perceptron, in double precision."""
    torch.manual_seed(seed)
    layers = nn.Flatten(), nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, CLASSES)
    return nn.Sequential(*layers).double()


def conv(seed: int = 0) -> nn.Module:
    """A convolutional network with both kinds of running statistics, in double precision."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(IMAGE[0], 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4, momentum=None),
        nn.ReLU(),
        nn.Conv2d(4, 5, 3, stride=2),
        nn.BatchNorm2d(5, momentum=0.1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(5, CLASSES),
    ).double()


def batch(number: int, count: int = 6, shape: tuple[int, ...] = IMAGE) -> tuple[Tensor, Tensor]:
    """Batch `number` of a stream whose classes change every two batches."""
    generator = torch.Generator().manual_seed(1000 + number)
    x = torch.rand(count, *shape, generator=generator, dtype=torch.float64)
    y = torch.randint(2, (count,), generator=generator) + number // 2 * 2 % CLASSES
    return x, y


every_method = pytest.mark.parametrize("method", METHODS)
any_method = pytest.mark.parametrize("method", ALL)
every_network = pytest.mark.parametrize("make", [mlp, conv])


def observe(student: Learner, batches: int = 4) -> None:
    """Show a learner the first batches of the stream."""
    for number in range(batches):
        student.observe(*batch(number))


def learner(
    method: str,
    network: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    seed: int = 0,
    lag: LagConfig = OFTEN,
    learning_rate: float = 0.05,
) -> Learner:
    """A learner of this method with small, quick settings; total variation is off, so that any input shape is right."""
    tasks = BoundaryConfig(lag.policy, lag.every, lag.spacing)
    vae = MLPVAEConfig(latents=3, depth=1, hidden=8)
    ascent = {"images": 9, "steps": 2, "recall_rate": 1.0, "total_variation": 0.0, "real_weight": 0.5, "lag": lag}
    make: dict[str, Callable[[], Learner]] = {
        "naive": lambda: Naive(network, NaiveConfig(learning_rate), optimizer, seed),
        "lwf": lambda: Distill(network, DistillConfig(learning_rate, lag=lag), optimizer, seed),
        "adi": lambda: ADI(
            network, decoded(ADIConfig, ascent, learning_rate=learning_rate, batch_statistics=0.1), optimizer, seed
        ),
        "arm": lambda: ARM(network, decoded(ARMConfig, ascent, learning_rate=learning_rate), optimizer, seed),
        "er": lambda: ER(network, ERConfig(7, learning_rate, 4, tasks=tasks), optimizer, seed),
        "er-mir": lambda: ERMIR(
            network, ERMIRConfig(7, learning_rate, 2, candidates=5, remember_outputs=True, tasks=tasks), optimizer, seed
        ),
        "gem": lambda: GEM(network, GEMConfig(7, learning_rate, tasks=tasks), optimizer, seed),
        "icarl": lambda: ICaRL(network, ICaRLConfig(9, learning_rate, 2, 4, tasks=tasks), optimizer, seed),
        "gen": lambda: GEN(network, GENConfig(learning_rate, 2, 1, warm_up=20, vae=vae, tasks=tasks), optimizer, seed),
        "gen-mir": lambda: GENMIR(
            network, GENMIRConfig(learning_rate, 2, 2, vae=vae, ascent_steps=2, tasks=tasks), optimizer, seed
        ),
        "slda": lambda: SLDA(network, SLDAConfig(), seed),
    }
    return make[method]()


Config = TypeVar("Config")


def decoded(kind: type[Config], settings: Mapping[str, object], **more: object) -> Config:
    """A config from settings that several kinds have."""
    return kind(**settings, **more)


def part(state: object, name: str) -> Mapping[str, object]:
    """A mapping inside a state."""
    assert isinstance(state, Mapping)
    inner = state[name]
    assert isinstance(inner, Mapping)
    return inner


def teacher_of(learner: Learner) -> Mapping[str, object]:
    """The parameters and buffers of a learner's teacher."""
    return part(part(learner.state_dict(), "teacher"), "network")


def assert_same(found: object, expected: object, tolerance: float = 0.0, where: str = "") -> None:
    """Two nested states are equal: bit for bit, or to a tolerance."""
    if isinstance(expected, Mapping):
        assert isinstance(found, Mapping)
        assert list(found) == list(expected), where
        for key in expected:
            assert_same(found[key], expected[key], tolerance, f"{where}/{key}")
    elif isinstance(expected, list):
        assert isinstance(found, list)
        assert len(found) == len(expected), where
        for number, value in enumerate(expected):
            assert_same(found[number], value, tolerance, f"{where}/{number}")
    elif isinstance(expected, Tensor):
        assert isinstance(found, Tensor)
        torch.testing.assert_close(
            found, expected, rtol=0, atol=tolerance, equal_nan=True, msg=lambda text: f"{where}: {text}"
        )
    elif isinstance(expected, float):
        assert isinstance(found, float)
        torch.testing.assert_close(
            found, expected, rtol=0, atol=tolerance, equal_nan=True, msg=lambda text: f"{where}: {text}"
        )
    else:
        assert found == expected, where
