"""Saved states: nested mappings and lists of tensors and plain values, in one safetensors file with a checksum.

The file's metadata hold the nesting and the plain values as JSON, with a reference where a tensor belongs, and a
SHA-256 over that and every tensor. No pickle: reading a file cannot run anything.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from .errors import DataError, InputError, WriteError
from .files import sync_folder, write_bytes
from .learners import Learner
from .learners.state import State, mapping

FORMAT = "autorecall state 1"
LARGEST = 16 * 2**30  # bytes; a file is read as a whole
KEPT = 2  # checkpoints of a run: the one before the last is there if the last is damaged
FOLDER = "checkpoints"


def write_state(path: Path, state: State) -> None:
    """Write a state atomically."""
    tensors: dict[str, Tensor] = {}
    nested = json.dumps(_encoded(state, "", tensors), allow_nan=False)
    metadata = {"format": FORMAT, "state": nested, "sha256": _checksum(nested, tensors)}
    write_bytes(path, safetensors.torch.save(tensors, metadata))


def read_state(path: Path) -> State:
    """The state that `write_state` wrote; any other file, or a damaged one, gives one sentence."""
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise DataError(f"{path} is no file; check the path")
        if path.stat().st_size > LARGEST:
            raise DataError(f"{path} is larger than {LARGEST // 2**30} GiB; that is no file of autorecall")
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; check the path") from error
    try:
        tensors = safetensors.torch.load(content)  # checks every length and offset against the file
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        metadata = header["__metadata__"]
        if metadata["format"] != FORMAT or metadata["sha256"] != _checksum(metadata["state"], tensors):
            raise ValueError("format or checksum")
        return mapping(_decoded(json.loads(metadata["state"]), tensors))
    except (SafetensorError, LookupError, ValueError, TypeError, RuntimeError, InputError) as error:
        raise DataError(f"{path} is damaged, or no state that autorecall saved; use another") from error


def save(learner: Learner, path: str | Path) -> None:
    """Save a learner, so that `load` goes on from here bit for bit: network, optimizer, generator, all that it keeps.

    torch's global generator, which dropout uses, is not the learner's: keep `torch.get_rng_state()` for that.
    """
    write_state(Path(path), {"method": type(learner).__name__, "learner": learner.state_dict()})


def load(learner: Learner, path: str | Path) -> None:
    """Take back what `save` wrote, into a learner made with the same network and config; one refused is unchanged."""
    path = Path(path)
    state = read_state(path)
    method = state.get("method")
    if not isinstance(method, str) or not isinstance(state.get("learner"), Mapping):
        raise DataError(f"{path} is a checkpoint of a run, not a saved learner; give a file that autorecall.save wrote")
    if method != type(learner).__name__:
        raise InputError(f"{path} is of the method {method} but the learner is {type(learner).__name__}; use that one")
    saved = mapping(state["learner"])
    _check_network(path, mapping(saved.get("network")), learner)
    before = copy.deepcopy(learner.state_dict())
    try:
        learner.load_state_dict(saved)
    except Exception as error:  # a user's optimizer or learner refuses in its own way
        learner.load_state_dict(before)
        raise InputError(
            f"{path} does not fit this learner ({type(error).__name__}); make it with the network, config and "
            "optimizer that the saved one had"
        ) from error


def _check_network(path: Path, saved: State, learner: Learner) -> None:
    own = learner.network.state_dict()
    for name in [*own, *saved]:
        there, here = (_kind(state.get(name)) for state in (saved, own))
        if there != here:
            raise InputError(
                f"{path} is of another network: {name} is {there} there and {here} here; make the same network"
            )


def _kind(value: object) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}" if isinstance(value, Tensor) else "missing"


class Checkpoints:
    """The last two checkpoints of a run."""

    def __init__(self, run_folder: Path) -> None:
        self.folder = run_folder / FOLDER

    def write(self, step: int, state: State) -> None:
        """Add a checkpoint, and remove the one before the last."""
        with _disk(self.folder):
            if not self.folder.exists():
                self.folder.mkdir()  # without parents: a run folder that was lost is not made again
                sync_folder(self.folder.parent)
        write_state(self.folder / f"step-{step:09}.safetensors", state)
        with _disk(self.folder):
            for old in self._files()[:-KEPT]:
                old.unlink()

    def read(self, told: Callable[[str], None]) -> State | None:
        """The newest one that is whole; of damaged ones `told` gets a sentence, and they are put aside."""
        for path in reversed(self._files()):
            try:
                return read_state(path)
            except DataError:
                told(f"the checkpoint {path} is damaged and was passed over")
                with _disk(self.folder):  # out of the way of those to come, which may have lower numbers
                    path.replace(path.with_suffix(".damaged"))
        return None

    def remove(self) -> None:
        """Remove them all; a finished run has no use for them."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.safetensors"))


@contextmanager
def _disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WriteError(f"cannot write to {folder}: {error.strerror}; check the folder and the free space") from error


def _encoded(value: object, name: str, tensors: dict[str, Tensor]) -> object:
    """The value as JSON can say it; its tensors are put into `tensors`, each with memory of its own."""
    if isinstance(value, Tensor):
        # In the order in which it lies in memory, such as channels last, so that it comes back in that order.
        order = sorted(range(value.dim()), key=value.stride, reverse=True)
        key = f"{len(tensors)}{name}"  # numbered, because names with a slash could meet
        tensors[key] = value.detach().cpu().permute(order).clone(memory_format=torch.contiguous_format)
        return {"$tensor": key, "$order": order}
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) and not key.startswith("$") for key in value):
            raise TypeError(f"cannot save {name or 'this'}: expected names as keys, that do not begin with $")
        return {key: _encoded(inner, f"{name}/{key}", tensors) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_encoded(inner, f"{name}/{number}", tensors) for number, inner in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"cannot save {name}: a {type(value).__name__} is neither a tensor nor a plain value")


def _decoded(value: object, tensors: Mapping[str, Tensor]) -> object:
    if isinstance(value, list):
        return [_decoded(inner, tensors) for inner in value]
    if not isinstance(value, dict):
        return value
    if "$float" in value:
        return float(value["$float"])
    if "$tensor" in value:
        order = value["$order"]
        # Copied, because only memory of torch's own is aligned as at first, on which the last bits can depend.
        return tensors[value["$tensor"]].clone().permute([order.index(axis) for axis in range(len(order))])
    return {key: _decoded(inner, tensors) for key, inner in value.items()}


def _checksum(nested: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(nested.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode("utf-8", "surrogatepass"))
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
