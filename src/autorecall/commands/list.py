"""`autorecall list`: the presets."""

from __future__ import annotations

from typing import Annotated

import tyro

from ..checks import brief
from ..errors import ConfigError
from ..presets import PRESETS
from .words import call


def main(arguments: list[str]) -> None:
    """Parse and print."""
    call(_list, "autorecall list", arguments)


def _list(dataset: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="[DATASET]")] = "") -> None:
    """Print the presets, one `dataset/method` per line.

    Args:
        dataset: Print only those of mnist, cifar10 or miniimagenet.
    """
    names = [name for name in PRESETS if not dataset or name.split("/")[0] == dataset]
    if not names:
        datasets = dict.fromkeys(name.split("/")[0] for name in PRESETS)
        raise ConfigError(f"there is no preset for the dataset {brief(dataset)}; expected one of {', '.join(datasets)}")
    print("\n".join(names))
