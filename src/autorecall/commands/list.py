"""`autorecall list`: the presets."""

from __future__ import annotations

from typing import Annotated

import tyro

from ..errors import ConfigError
from ..presets import PRESETS


def main(arguments: list[str]) -> None:
    """Parse and print."""
    tyro.cli(_list, prog="autorecall list", args=arguments)


def _list(dataset: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DATASET")] = "") -> None:
    """Print the presets, one `dataset/method` per line.

    Args:
        dataset: Print only those of mnist, cifar10 or miniimagenet.
    """
    names = [name for name in PRESETS if not dataset or name.split("/")[0] == dataset]
    if not names:
        datasets = dict.fromkeys(name.split("/")[0] for name in PRESETS)
        raise ConfigError(f"there is no preset for the dataset {dataset!r:.80}; expected one of {', '.join(datasets)}")
    print("\n".join(names))
