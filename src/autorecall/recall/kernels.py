"""The functions of _kernels.c and _winograd.c, compiled at installation; there are none without a compiler."""

from __future__ import annotations

import ctypes
import importlib.util
import warnings
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

VERSION = 6  # kernels_version() of the sources
VECTORS = (32, 64)  # bytes
SIGNATURES = {  # pointers, whole numbers, reals
    "norm_forward": (10, 4, 3),
    "norm_backward": (9, 4, 0),
    "logit_gradient": (8, 3, 5),
    "ascent_step": (6, 8, 4),
    "patches": (4, 5, 1),
    "patch_features": (5, 6, 2),
}
FILTERING = {"winograd_weights": (2, 7, 0), "winograd": (5, 6, 0), "winograd_gradient": (4, 6, 0)}  # for each vector


@cache
def _library() -> ctypes.CDLL | None:
    found = importlib.util.find_spec("autorecall.recall._kernels")
    if found is None or found.origin is None:
        return None
    library = ctypes.CDLL(found.origin)
    if not hasattr(library, "kernels_version") or library.kernels_version() != VERSION:
        warnings.warn(
            "the compiled kernels are of another version and are not used; install autorecall again", stacklevel=2
        )
        return None
    return library


@cache
def _kernels() -> dict[tuple[str, torch.dtype], Callable[..., int | None]]:
    library, kernels = _library(), dict[tuple[str, torch.dtype], Callable[..., int | None]]()
    if library is None:
        return kernels
    for kind, dtype in (("float", torch.float32), ("double", torch.float64)):
        there = {name: f"{name}_{kind}" for name in SIGNATURES}
        there |= {f"{name}_{vector}": f"{name}_{kind}_{vector}" for name in FILTERING for vector in VECTORS}
        for name, symbol in there.items():
            if not name.endswith(f"_{VECTORS[-1]}") or hasattr(library, symbol):  # not every compiler makes the widest
                pointers, integers, reals = SIGNATURES.get(name) or FILTERING[name.rpartition("_")[0]]
                function = library[symbol]
                function.argtypes = (
                    [ctypes.c_void_p] * pointers + [ctypes.c_int64] * integers + [ctypes.c_double] * reals
                )
                function.restype = ctypes.c_int64 if name == "logit_gradient" else None
                kernels[name, dtype] = function
    return kernels


def can_call(x: Tensor) -> bool:
    """Whether there are kernels for this kind of tensor."""
    return x.device.type == "cpu" and ("norm_forward", x.dtype) in _kernels()


@cache
def widest_vector() -> int:
    """Bytes of the widest vectors that minimal filtering can use on this processor; 0 if it would not be fast."""
    library = _library()
    return int(library.winograd_bytes()) if _kernels() and library is not None else 0


def winograd_pays() -> bool:
    """Whether there are kernels, and the processor has the vectors that minimal filtering needs to be fast."""
    return widest_vector() > 0


def call(name: str, tensors: tuple[Tensor | None, ...], *numbers: float) -> int | None:
    """Call a kernel for the dtype of the first tensor. All tensors must have the layout the kernel expects."""
    assert tensors[0] is not None
    kernel = _kernels()[name, tensors[0].dtype]
    return kernel(*(None if tensor is None else tensor.data_ptr() for tensor in tensors), *numbers)
