"""Saved states: nested mappings and lists of tensors and plain values, in one safetensors file with a checksum.

The file's metadata holds the nesting and the plain values as JSON, with a reference in place of each tensor, and a
SHA-256 over that and every tensor. No pickle: reading a file cannot execute anything.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from ..errors import DataError, InputError, WriteError
from .files import regular_file, write_chunks
from .state import State, mapping

CONTAINER = "autorecall state 1"
LARGEST = 16 * 2**30  # bytes; a file is read as a whole
LARGEST_HEADER = 64 * 2**20  # bytes, read before anything is known about the file


def write_state(path: Path, state: State) -> None:
    """Write a state atomically."""
    tensors: dict[str, Tensor] = {}
    nested = json.dumps(_encoded(state, "", tensors), allow_nan=False)
    metadata = {"format": CONTAINER, "state": nested, "sha256": _checksum(nested, tensors)}
    header, body = _in_order(safetensors.torch.save(tensors, metadata))
    if len(header) > LARGEST_HEADER:
        raise WriteError(
            f"cannot write {path}: more than {LARGEST_HEADER // 2**20} MiB of plain values, such as lists of numbers, "
            "could not be read again; keep them in a tensor"
        )
    write_chunks(path, [len(header).to_bytes(8, "little"), header, body])


def _in_order(content: bytes) -> tuple[bytes, memoryview]:
    """The header of a safetensors file with its keys in order, which are in any order at first, and what follows it."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:end]), sort_keys=True, separators=(",", ":")).encode()
    return header + b" " * (-len(header) % 8), memoryview(content)[end:]  # tensors begin at a multiple of 8


def read_state(path: Path, links: bool = False) -> State:
    """The state that `write_state` wrote; any other file, or a damaged one, is a DataError. `links` are followed."""
    try:
        content, metadata = _read_checked(path, links)
        tensors = safetensors.torch.load(content)  # checks every length and offset against the file
        if metadata["sha256"] != _checksum(metadata["state"], tensors):
            raise ValueError("checksum")
        state = mapping(_decoded(json.loads(metadata["state"]), tensors))
        if tensors:
            raise ValueError("an unused tensor")
        return state
    except (
        SafetensorError,
        LookupError,
        ValueError,
        TypeError,
        AttributeError,
        OverflowError,
        RuntimeError,
        InputError,
    ) as error:
        if "allocate" in str(error):  # torch is out of memory, which is no damage
            raise
        raise DataError(f"{path} is damaged, or was not saved by autorecall; use another") from error


def _read_checked(path: Path, links: bool) -> tuple[bytes, dict[str, str]]:
    """A file and its metadata; the bulk is read only once the header has shown that it is ours."""
    with regular_file(path, links) as file:
        size = os.fstat(file.fileno()).st_size
        if size > LARGEST:
            raise DataError(f"{path} is larger than {LARGEST // 2**30} GiB; that is not a file of autorecall")
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= min(LARGEST_HEADER, size - 8):
            raise ValueError("the length of the header")
        header = json.loads(file.read(length))
        metadata = header.pop("__metadata__")
        if metadata["format"] != CONTAINER:
            raise ValueError("format")
        if 8 + length + max((int(entry["data_offsets"][1]) for entry in header.values()), default=0) != size:
            raise ValueError("the length of the file")
        file.seek(0)
        return file.read(size), metadata


def _encoded(value: object, name: str, tensors: dict[str, Tensor]) -> object:
    """The value as JSON; its tensors are put into `tensors`, each with its own memory."""
    if isinstance(value, Tensor):
        # In its memory order, such as channels last, so that it comes back in that order.
        order = sorted(range(value.dim()), key=value.stride, reverse=True)
        key = f"{len(tensors)}{name}"  # numbered, because names with a slash could collide
        tensors[key] = value.detach().cpu().permute(order).clone(memory_format=torch.contiguous_format)
        return {"$tensor": key, "$order": order}
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) and not key.startswith("$") for key in value):
            raise TypeError(f"cannot save {name or 'this'}: expected names as keys that do not begin with $")
        return {key: _encoded(inner, f"{name}/{key}", tensors) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_encoded(inner, f"{name}/{number}", tensors) for number, inner in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"cannot save {name}: a {type(value).__name__} is neither a tensor nor a plain value")


def _decoded(value: object, tensors: dict[str, Tensor]) -> object:
    """The value with its tensors, each taken out of `tensors`, so that none is used twice."""
    if isinstance(value, list):
        return [_decoded(inner, tensors) for inner in value]
    if not isinstance(value, dict):
        return value
    if "$float" in value:
        if value["$float"] not in ("nan", "inf", "-inf"):
            raise ValueError("not a number")
        return float(value["$float"])
    if "$tensor" in value:
        order, stored = value["$order"], tensors.pop(value["$tensor"])
        if not isinstance(order, list) or sorted(order) != list(range(stored.dim())):
            raise ValueError("not an order")
        # Copied, because only torch's own memory is aligned as it was at first, and the last bits can depend on that.
        return stored.clone().permute([order.index(axis) for axis in range(len(order))])
    return {key: _decoded(inner, tensors) for key, inner in value.items()}


def _checksum(nested: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(nested.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode("utf-8", "surrogatepass"))
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
