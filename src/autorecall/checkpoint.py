"""Saved states: nested mappings and lists of tensors and plain values, in one safetensors file with a checksum.

The file's metadata hold the nesting and the plain values as JSON, with a reference where a tensor belongs, and a
SHA-256 over that and every tensor. No pickle: reading a file cannot run anything.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from .errors import DataError, InputError, StoppedError, UnreadableError, WriteError
from .files import sync_folder, write_bytes
from .learners import Learner
from .learners.state import State, mapping
from .schema import json_differences, to_json

FORMAT = "autorecall state 1"
LARGEST = 16 * 2**30  # bytes; a file is read as a whole
LARGEST_HEADER = 16 * 2**20  # bytes, read before anything is known of the file
KEPT = 2  # checkpoints of a run: the one before the last is there if the last is damaged
FOLDER = "checkpoints"
WHOLE = re.compile(r"step-\d+\.safetensors")
DAMAGED = re.compile(r"step-\d+\.damaged")
LEFT = re.compile(r"\.step-\d+\.safetensors\.\d+\.tmp")  # by a process that was killed while writing
# Settings that say how numbers are computed, and not which.
HOW = frozenset({"side_by_side", "engine", "copies"})


def write_state(path: Path, state: State) -> None:
    """Write a state atomically."""
    tensors: dict[str, Tensor] = {}
    nested = json.dumps(_encoded(state, "", tensors), allow_nan=False)
    metadata = {"format": FORMAT, "state": nested, "sha256": _checksum(nested, tensors)}
    content = safetensors.torch.save(tensors, metadata)
    if int.from_bytes(content[:8], "little") > LARGEST_HEADER:
        raise TypeError(f"cannot save more than {LARGEST_HEADER // 2**20} MiB of plain values; make them a tensor")
    write_bytes(path, content)


def read_state(path: Path) -> State:
    """The state that `write_state` wrote; any other file, or a damaged one, gives one sentence."""
    try:
        content, metadata = _read_checked(path)
        tensors = safetensors.torch.load(content)  # checks every length and offset against the file
        if metadata["sha256"] != _checksum(metadata["state"], tensors):
            raise ValueError("checksum")
        state = mapping(_decoded(json.loads(metadata["state"]), tensors))
        if tensors:
            raise ValueError("a tensor that belongs nowhere")
        return state
    except OSError as error:
        raise UnreadableError(f"cannot read {path}: {error.strerror}; check the path") from error
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
        if "allocate" in str(error):  # how torch says that there is no memory, which is no damage
            raise
        raise DataError(f"{path} is damaged, or no state that autorecall saved; use another") from error


def _read_checked(path: Path) -> tuple[bytes, dict[str, str]]:
    """A file and its metadata; the large part is read only once the small one has shown that it is ours."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):  # a pipe would be waited for
        raise DataError(f"{path} is no file; check the path")
    if found.st_size > LARGEST:
        raise DataError(f"{path} is larger than {LARGEST // 2**30} GiB; that is no file of autorecall")
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= min(LARGEST_HEADER, found.st_size - 8):
            raise ValueError("the length of the header")
        header = json.loads(file.read(length))
        metadata = header.pop("__metadata__")
        if metadata["format"] != FORMAT:
            raise ValueError("format")
        if 8 + length + max((int(entry["data_offsets"][1]) for entry in header.values()), default=0) != found.st_size:
            raise ValueError("the length of the file")
        file.seek(0)
        return file.read(), metadata


def save(learner: Learner, path: str | Path) -> None:
    """Save a learner, so that `load` goes on from here bit for bit: network, optimizer, generator, all that it keeps.

    torch's global generator, which dropout uses, is not the learner's: keep `torch.get_rng_state()` for that.
    """
    state = {"method": type(learner).__name__, "config": _config(learner), "learner": learner.state_dict()}
    write_state(Path(path), state)


def load(learner: Learner, path: str | Path) -> None:
    """Take back what `save` wrote, into a learner made with the same network and config; one refused is unchanged."""
    path = Path(path)
    state = read_state(path)
    method = state.get("method")
    if not isinstance(method, str) or not isinstance(state.get("learner"), Mapping):
        raise DataError(f"{path} is a checkpoint of a run, not a saved learner; give a file that autorecall.save wrote")
    if method != type(learner).__name__:
        raise InputError(f"{path} is of the method {method} but the learner is {type(learner).__name__}; use that one")
    _check_config(path, state.get("config"), learner)
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


def _config(learner: Learner) -> dict[str, object] | None:
    """The settings of a learner; one of the user's own may have none."""
    config = getattr(learner, "config", None)
    return to_json(config) if is_dataclass(config) else None


def _check_config(path: Path, saved: object, learner: Learner) -> None:
    own = _config(learner)
    if own is None or not isinstance(saved, Mapping):  # of before settings were saved
        return
    there, here = json_differences(saved, own), json_differences(own, saved)
    changed = [
        f"{name} ({there.get(name, 'none')} there, {here.get(name, 'none')} here)"
        for name in dict.fromkeys([*there, *here])
        if name not in HOW
    ]
    if changed:
        raise InputError(f"{path} is of a learner with other settings: {', '.join(changed)}; use the same config")


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
            for old in self._files(WHOLE)[:-KEPT]:
                old.unlink()

    def read(self, told: Callable[[str], None]) -> tuple[Path, State] | None:
        """The newest one that is whole; of damaged ones `told` gets a sentence, and they are put aside.

        One that cannot be read this time may be whole: then nothing is touched, and nothing goes on without it.
        """
        try:
            paths = self._files(WHOLE)
            damaged = []
            for path in reversed(paths):
                try:
                    state = read_state(path)
                except UnreadableError:
                    raise
                except DataError:
                    damaged.append(path)
                else:
                    self._put_aside(damaged, told)
                    return path, state
        except UnreadableError as error:
            raise StoppedError(f"{error} and run again, or --fresh starts over") from error
        self._put_aside(damaged, told)
        if damaged:
            told(f"no checkpoint in {self.folder} is whole; the run starts over")
        return None

    def any(self) -> bool:
        """Whether there is anything of ours."""
        try:
            return bool(self._files(WHOLE, DAMAGED, LEFT))
        except UnreadableError:  # nobody knows
            return True

    def remove(self) -> None:
        """Remove them all, and nothing else; a finished run has no use for them."""
        with suppress(OSError, UnreadableError):  # somebody else's file may lie there, too
            self._unlink(WHOLE, DAMAGED, LEFT)
            self.folder.rmdir()

    def remove_leftovers(self) -> None:
        """Remove the halves of files that a process left which was killed while writing."""
        with suppress(UnreadableError):
            self._unlink(LEFT)

    def _put_aside(self, damaged: list[Path], told: Callable[[str], None]) -> None:
        """Out of the way of those to come, which may have lower numbers."""
        for path in damaged:
            told(f"the checkpoint {path} is damaged and was passed over")
            with _disk(self.folder):
                path.replace(path.with_suffix(".damaged"))

    def _unlink(self, *kinds: re.Pattern[str]) -> None:
        for path in self._files(*kinds):
            with suppress(OSError):
                path.unlink()

    def _files(self, *kinds: re.Pattern[str]) -> list[Path]:
        try:
            found = list(self.folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise UnreadableError(f"cannot read {self.folder}: {error.strerror}; check the path") from error
        return sorted(path for path in found if any(kind.fullmatch(path.name) for kind in kinds))


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


def _decoded(value: object, tensors: dict[str, Tensor]) -> object:
    """The value with its tensors, each taken out of `tensors`, so that none is named twice."""
    if isinstance(value, list):
        return [_decoded(inner, tensors) for inner in value]
    if not isinstance(value, dict):
        return value
    if "$float" in value:
        if value["$float"] not in ("nan", "inf", "-inf"):
            raise ValueError("a number that is none")
        return float(value["$float"])
    if "$tensor" in value:
        order, stored = value["$order"], tensors.pop(value["$tensor"])
        if not isinstance(order, list) or sorted(order) != list(range(stored.dim())):
            raise ValueError("an order that is none")
        # Copied, because only memory of torch's own is aligned as at first, on which the last bits can depend.
        return stored.clone().permute([order.index(axis) for axis in range(len(order))])
    return {key: _decoded(inner, tensors) for key, inner in value.items()}


def _checksum(nested: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(nested.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode("utf-8", "surrogatepass"))
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
