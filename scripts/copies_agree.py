"""A whole MNIST-5k run of ARM with copies collapsed, with copies kept, and with the equations as written.

    python scripts/copies_agree.py [M]

Prints the largest difference between the three accuracy matrices and between the final weights. In double precision,
because the last bits of single precision grow over 400 recalls; M is 30 by default, three times the batch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from autorecall.commands.measure import LiteralARM
from autorecall.data import load
from autorecall.learners.arm import ARM, ARMConfig
from autorecall.metrics import average_accuracy, task_accuracy
from autorecall.presets import PRESETS
from autorecall.stream import Stream, as_batch


class KeptCopies(ARM):
    """Every copy run separately."""

    copies = "keep"


WAYS: dict[str, Callable[[nn.Module, ARMConfig], ARM]] = {
    "copies collapsed": ARM,
    "copies kept": KeptCopies,
    "copies kept, plain equations": LiteralARM,
}


def whole_run(images: int, make: Callable[[nn.Module, ARMConfig], ARM]) -> tuple[list[list[float]], nn.Module]:
    """The accuracy matrix and the network at the end."""
    config, dataset = PRESETS["mnist/arm"].config, load("mnist")
    stream = Stream(dataset, config.stream, seed=config.seed)
    torch.manual_seed(config.seed)
    network = config.network.build(dataset.input_shape, len(dataset.classes)).double()
    assert isinstance(config.learner, ARMConfig)
    learner = make(network, replace(config.learner, recalled_images=images).for_stream(stream.task_lengths))
    inputs, _ = as_batch(dataset.test, slice(None))
    matrix = []
    for task in stream:
        for x, y in task:
            learner.observe(x.double(), y)
        guesses = learner.predict(inputs.double()).argmax(1).numpy()
        matrix.append([task_accuracy(guesses, dataset.test.labels, tested.classes) for tested in stream])
    return matrix, network


def main() -> None:
    """Compare the three."""
    images = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    runs = {name: whole_run(images, way) for name, way in WAYS.items()}
    matrix, network = runs["copies collapsed"]
    print(f"M = {images}, accuracy {average_accuracy(matrix):.2f} % with copies collapsed")
    for name, (other_matrix, other) in runs.items():
        in_matrix = max(
            abs(a - b) for row, o in zip(matrix, other_matrix, strict=True) for a, b in zip(row, o, strict=True)
        )
        in_weights = max(
            float((mine - theirs).detach().abs().max())
            for mine, theirs in zip(network.parameters(), other.parameters(), strict=True)
        )
        print(f"{name:30} largest difference: {in_matrix:.3g} in the matrix, {in_weights:.3g} in the weights")


if __name__ == "__main__":
    main()
