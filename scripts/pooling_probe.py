"""Patch filters on CIFAR10: what else could be made of their responses, with as many features and so as much memory.

    python scripts/pooling_probe.py --data DIR     # DIR has cifar-10-batches-bin

600 filters are set by the first hundred images, a third of the stream is learned in closed form, and images that are
not learned are classified: those for validation, and 5,500 of the rest of the stream. No test image is looked at.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from autorecall import Gaussians, GaussiansConfig, PatchesConfig
from autorecall.data import Split, load
from autorecall.networks import Patches
from autorecall.networks.patches import QUIET
from autorecall.presets import PRESETS
from autorecall.stream import Stream, as_batch

FILTERS, DESCRIPTOR, TOGETHER, HELD_OUT = 600, 162, 200, 5500
GENERATOR = torch.Generator().manual_seed(0)


def rooted(means: Tensor) -> Tensor:
    """Features of mean responses: one row per image."""
    return (means.clamp_min(0) + QUIET).sqrt().flatten(1)


def projected(matrix: Tensor) -> Callable[[Tensor], Tensor]:
    """Roots of all mean responses, times a matrix."""
    return lambda means: (means.clamp_min(0) + QUIET).sqrt().flatten(1) @ matrix


def channels_projected(matrix: Tensor) -> Callable[[Tensor], Tensor]:
    """The same within each cell, by one matrix for all."""
    return lambda means: (
        (means.clamp_min(0) + QUIET).sqrt().flatten(3).permute(0, 3, 1, 2).flatten(2) @ matrix
    ).flatten(1)


def principal(means: Tensor, count: int) -> Tensor:
    """The directions in which the features of a cell vary most."""
    rows = (means.clamp_min(0) + QUIET).sqrt().flatten(3).permute(0, 3, 1, 2).flatten(2).flatten(0, 1).double()
    axes: Tensor = torch.linalg.eigh(rows.T.cov())[1]  # from the least on
    return axes.flip(1)[:, :count].float()


def described(network: Patches, split: Split, chosen: np.ndarray) -> tuple[Tensor, Tensor]:
    """The descriptor and the mean responses (images, 2, filters, rows, columns) of some images of a split."""
    parts = [as_batch(split, chosen[start : start + TOGETHER])[0] for start in range(0, len(chosen), TOGETHER)]
    features = torch.cat([network.features(part) for part in parts])
    means = features[:, DESCRIPTOR:].square() - QUIET
    return features[:, :DESCRIPTOR], means.view(len(means), 2, -1, *network.config.cells)


def accuracy(learned: Tensor, labels: Tensor, asked: Tensor, answers: Tensor) -> float:
    """In percent, in closed form."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(learned.shape[1], 10))
    learner = Gaussians(network, GaussiansConfig(own_features=DESCRIPTOR))
    for x, y in zip(torch.split(learned, 500), torch.split(labels, 500), strict=True):
        learner.observe(x, y)
    return float(100 * (learner.predict(asked).argmax(1) == answers).double().mean())


@torch.no_grad()
def main() -> None:
    """Print a line for each variant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    dataset = load("cifar10", folder=parser.parse_args().data)
    stream = Stream(dataset, PRESETS["cifar10/patches"].config.stream, 1 / 3, 0)
    order = np.concatenate([np.asarray(task.order) for task in stream])
    rest = np.setdiff1d(np.arange(len(dataset.train)), order)
    rest = np.random.default_rng(0).permutation(rest)[:HELD_OUT]
    torch.manual_seed(0)
    network = replace(PatchesConfig(), filters=FILTERS, frequencies=6).build((3, 32, 32), 10)
    assert isinstance(network, Patches)
    for start in range(0, network.first_images, 10):
        network.show(as_batch(dataset.train, order[start : start + 10])[0])
    first, learned = described(network, dataset.train, order)
    validation = described(network, dataset.val, np.arange(len(dataset.val)))
    others = described(network, dataset.train, rest)
    asked_first, asked = (torch.cat(pair) for pair in zip(validation, others, strict=True))
    labels = torch.from_numpy(np.asarray(dataset.train.labels)[order]).long()
    answers = torch.from_numpy(np.concatenate([dataset.val.labels, np.asarray(dataset.train.labels)[rest]])).long()
    many = 2 * FILTERS * 4
    variants: dict[str, Callable[[Tensor], Tensor]] = {
        "149 filters, quarters": lambda means: rooted(means[:, :, :149]),
        "298 filters, upper and lower half": lambda means: rooted(means[:, :, :298].mean(4)),
        "596 filters, the whole image": lambda means: rooted(means[:, :, :596].mean((3, 4))),
        "298 filters, quarters, up and down added": lambda means: rooted(means[:, :, :298].sum(1)),
        "600 filters, 200 principal components per quarter": channels_projected(principal(learned[:500], 200)),
        "600 filters, random projection to 1,192": projected(torch.randn(many, 1192, generator=GENERATOR) / many**0.5),
        "300 filters, quarters: no limit": lambda means: rooted(means[:, :, :300]),
        "600 filters, halves: no limit": lambda means: rooted(means.mean(4)),
    }
    warnings.simplefilter("ignore")  # features are no images in [0, 1]
    for name, variant in variants.items():
        one, other = torch.cat([first, variant(learned)], 1), torch.cat([asked_first, variant(asked)], 1)
        print(f"{name}: {one.shape[1]} features, {accuracy(one, labels, other, answers):.1f}", flush=True)


if __name__ == "__main__":
    main()
