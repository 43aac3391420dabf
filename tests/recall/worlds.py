"""Small networks and images, shared by the tests of recall."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from autorecall.networks import MLPConfig, ResNet18Config

CLASSES = 6
IMAGE = (2, 16, 16)
COUNTS = torch.tensor([2, 1, 4])


def with_group_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(IMAGE[0], 4, 3, stride=2),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    )


def with_batch_norm_of_vectors() -> nn.Module:
    layers = nn.Flatten(), nn.Linear(512, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, CLASSES)
    return nn.Sequential(*layers)


def with_batch_norm_along_a_line() -> nn.Module:
    layers = nn.Flatten(2), nn.Conv1d(2, 4, 5, stride=4), nn.BatchNorm1d(4, momentum=None), nn.Tanh(), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(252, CLASSES))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: MLPConfig((8, 7)).build(IMAGE, CLASSES),
    "resnet": lambda: ResNet18Config(channels=4).build(IMAGE, CLASSES),
    "group norm": with_group_norm,
    "batch norm 1d": with_batch_norm_of_vectors,
    "batch norm 1d along a line": with_batch_norm_along_a_line,
}


def network_of(kind: str, seed: int = 0) -> nn.Module:
    """A network in double precision, in train mode."""
    torch.default_generator.manual_seed(seed)
    return NETWORKS[kind]().double()


def some_images(count: int = len(COUNTS)) -> Tensor:
    """Always the same images, in the layout that learners give to convolutions."""
    generator = torch.Generator().manual_seed(1000)
    x = torch.rand(count, *IMAGE, generator=generator, dtype=torch.float64)
    return x.contiguous(memory_format=torch.channels_last)


def of_copies(counts: Tensor) -> Tensor:
    """The number of the image that each of its copies shows."""
    return torch.arange(len(counts)).repeat_interleave(counts)


def assert_close(found: object, expected: object, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
