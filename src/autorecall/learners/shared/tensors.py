"""What a tensor must be like to be learned from: one that holds its own values, side by side, in a usual dtype."""

from __future__ import annotations

import os
from functools import cache

import torch
from torch import Tensor

from ...errors import InputError, reason

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
)


def usable(name: str, given: Tensor) -> Tensor:
    """The values of a tensor as plain torch operations can use them, without a copy if possible, or an InputError."""
    try:
        return _usable(name, given)
    except (RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError) as error:
        raise InputError(f"{name} cannot be read ({reason(error)}); expected a dense tensor of numbers") from error


def _usable(name: str, given: Tensor) -> Tensor:
    kind = type(given)
    if kind is not Tensor:
        if kind.__torch_dispatch__ is not Tensor.__torch_dispatch__:
            raise InputError(
                f"{name} is a {kind.__name__}; expected a torch.Tensor that holds its own values: turn it into one"
            )
        with torch._C.DisableTorchFunctionSubclass():
            given = given.detach().as_subclass(Tensor)
    if given.is_nested:
        raise InputError(f"{name} is a nested tensor; expected inputs of one shape in a dense tensor: pad them")
    if given.is_quantized:
        raise InputError(f"{name} has the quantized dtype {given.dtype}; expected usual numbers: use dequantize()")
    if given.layout != torch.strided:
        raise InputError(f"{name} has the layout {given.layout}; expected a dense tensor: use {name}.to_dense()")
    if given.is_meta:
        raise InputError(f"{name} is on the meta device, which holds no values; expected a tensor with values")
    names = getattr(given, "names", ())  # newer versions of torch have none
    if any(names):
        raise InputError(f"{name} has named dimensions {names}; expected none: use {name}.rename(None)")
    size = given.numel() * given.element_size()
    if size > memory_of_machine():
        raise InputError(
            f"{name} has shape {tuple(given.shape)}, {size / 1e9:,.0f} GB, more than the memory of this machine; "
            "use fewer or smaller inputs"
        )
    if size and not _is_held(given):
        raise InputError(f"{name} has lost its memory (its storage was resized); expected a tensor with values")
    given = given.detach().resolve_neg()
    return given.clone() if given.is_inference() else given


def _is_held(given: Tensor) -> bool:
    last = given.storage_offset()
    for size, stride in zip(given.shape, given.stride(), strict=True):
        last += (size - 1) * stride
    return (last + 1) * given.element_size() <= given.untyped_storage().nbytes()


@cache
def memory_of_machine() -> float:
    """Bytes of memory, or infinity where they are not known."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # e.g. Windows
        return float("inf")
