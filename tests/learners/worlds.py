"""Small networks, batches and looks into a learner, shared by the tests of learners."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Iterator, Mapping

import pytest
import torch
from torch import Tensor, nn

from autorecall import BoundaryConfig, LagConfig, Learner, MLPVAEConfig, precision
from autorecall.learners.base import methods

CLASSES = 6
IMAGE = (2, 6, 5)


def _methods_with(setting: str | None = None) -> tuple[str, ...]:
    return tuple(
        name
        for name, config in methods().items()
        if setting is None or setting in {field.name for field in dataclasses.fields(config)}
    )


# Whatever learners there are: a new one takes part in all of these tests by itself.
ALL = _methods_with()
TAUGHT = _methods_with("lag")
KEEPING = _methods_with("kept_images")
METHODS = _methods_with("learning_rate")  # those that descend on a loss

OFTEN = LagConfig("every", every=2, start=2)
Make = Callable[[], nn.Module]


def mlp(seed: int = 0, inputs: int = 60) -> nn.Module:
    """A perceptron, in double precision."""
    torch.default_generator.manual_seed(seed)
    layers = nn.Flatten(), nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, CLASSES)
    return nn.Sequential(*layers).double()


def conv(seed: int = 0) -> nn.Module:
    """A convolutional network with both kinds of running statistics, in double precision."""
    torch.default_generator.manual_seed(seed)
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


def normed() -> nn.Module:
    """A perceptron with running statistics, whose loss stays finite whatever the inputs."""
    torch.default_generator.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(60), nn.Linear(60, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def batch(number: int, count: int = 6, shape: tuple[int, ...] = IMAGE) -> tuple[Tensor, Tensor]:
    """Batch `number` of a stream whose classes change every two batches."""
    generator = torch.Generator().manual_seed(1000 + number)
    x = torch.rand(count, *shape, generator=generator, dtype=torch.float64)
    y = torch.randint(2, (count,), generator=generator) + number // 2 * 2 % CLASSES
    return x, y


every_method = pytest.mark.parametrize("method", METHODS)
any_method = pytest.mark.parametrize("method", ALL)
every_network = pytest.mark.parametrize("make", [mlp, conv])


def needs(dtype: torch.dtype) -> None:
    """Skip a test whose precision would kill it here."""
    if not precision.works(dtype):
        pytest.skip(f"{dtype} does not work on this machine: torch's own layers are killed there")


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
    small: dict[str, object] = {
        "ascent_steps": 2,
        "batch_statistics": 0.1,
        "candidates": 5,
        "groups": 2,
        "kept_images": 8,
        "lag": lag,
        "learning_rate": learning_rate,
        "real_weight": 0.5,
        "recall_rate": 1.0,
        "recalled_images": 9,
        "remember_outputs": True,
        "replayed": 2,
        "steps_per_batch": 2,
        "tasks": BoundaryConfig(lag.policy, lag.every, lag.spacing),
        "total_variation": 0.0,
        "vae": MLPVAEConfig(latents=3, depth=1, hidden=8),
        "warm_up": 20,
    }
    kind = methods()[method]
    config = kind(**{field.name: small[field.name] for field in dataclasses.fields(kind) if field.name in small})
    built = config.build(network, seed)
    make: Callable[..., Learner] = type(built)
    takes_one = optimizer is not None and method in METHODS  # one that descends on no loss has no use for it
    return make(network, config, optimizer, seed) if takes_one else built


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


def numbers(state: object, where: str = "") -> Iterator[tuple[str, Tensor]]:
    """The floating tensors of a state, by name."""
    if isinstance(state, Mapping):
        for key, inner in state.items():
            yield from numbers(inner, f"{where}/{key}")
    elif isinstance(state, list):
        for number, inner in enumerate(state):
            yield from numbers(inner, f"{where}/{number}")
    elif isinstance(state, Tensor) and state.is_floating_point():
        yield where, state


def spoilt(student: Learner) -> list[str]:
    """The parts of a learner's state that are not finite."""
    return [name for name, value in numbers(student.state_dict()) if not bool(value.isfinite().all())]


def alive(shape: tuple[int, ...]) -> int:
    """Batches of inputs of this shape that something still holds."""
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]
    return sum(tuple(tensor.shape[1:]) == shape for tensor in tensors)


def log_density(rows: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """Of a Gaussian, without the factor that depends on its dimension alone."""
    apart = rows - mean
    return -(torch.einsum("nf,fg,ng->n", apart, covariance.inverse(), apart) + covariance.logdet()) / 2
