"""Whether all numbers of a state are finite, at the price of one sum per tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from ...errors import DivergedError

KINDS = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128}


def finite(value: Tensor, name: str) -> float:
    """The number in a tensor, or a DivergedError that names it."""
    number = float(value.detach())
    if not math.isfinite(number):
        raise DivergedError(name, number)
    return number


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether every value is finite; dtypes and layouts that torch can hardly calculate with are left out."""
    found = [tensor.detach() for tensor in tensors if _has_values(tensor)]
    # A sum is the quickest look at all values, and it is never finite if one of them is not.
    sums = [tensor.sum() for tensor in found]
    if not all(tensor.is_cpu for tensor in sums):  # an accelerator is waited for once
        sums = [torch.stack([tensor.abs().to(sums[0].device, torch.float32) for tensor in sums]).sum()]
    return all(math.isfinite(abs(tensor.item())) for tensor in sums) or all(
        bool(tensor.isfinite().all()) for tensor in found
    )


def check_finite(tensor: Tensor, term: str) -> None:
    """A DivergedError that names the first value which is not finite."""
    if all_finite([tensor]):
        return
    number = tensor.detach()[~tensor.isfinite()][0].item()
    raise DivergedError(term, math.nan if isinstance(number, complex) else float(number))


def _has_values(tensor: Tensor) -> bool:
    return tensor.dtype in KINDS and tensor.layout == torch.strided and not tensor.is_meta
