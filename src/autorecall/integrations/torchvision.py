"""torchvision beside a torch without CUDA.

The torchvision of package registries is built for CUDA. Beside a torch for the CPU its binary does not load, and its
import fails, because two operators of object detection are described in Python and exist only in the binary. Declared
beforehand they can be described, and all that needs no binary (networks, transforms, datasets) works.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec

import torch

OPERATORS = ("nms", "qnms")
_libraries: list[torch.library.Library] = []  # an operator is gone when its library is


def make_importable() -> None:
    """Import torchvision, if it is installed, with those operators declared if its binary does not bring them."""
    if find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "operator torchvision::nms does not exist" not in str(error):
            raise
        library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for name in OPERATORS:
            schema = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            library.define(schema)  # type: ignore[no-untyped-call]
        _libraries.append(library)
        importlib.import_module("torchvision")
