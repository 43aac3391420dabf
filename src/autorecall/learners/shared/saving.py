"""A learner in a file: everything it needs to resume bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path

from torch import Tensor, nn

from ...errors import DataError, InputError
from ...storage.formats import stamped, unstamped, upgraded_learner
from ...storage.schema import json_differences, to_json
from ...storage.state import State, mapping
from ...storage.state_file import read_state, write_state
from ..base import Learner
from .growing import output_layers, set_outputs
from .undo import Undo

RENAMED = {"Distill": "LwF"}  # classes, since format 1


def save(learner: Learner, path: str | Path) -> None:
    """Save a learner to resume from bit for bit: network, optimizer, generator and everything it keeps.

    torch's global generator, which dropout uses, is not the learner's: save `torch.get_rng_state()` for that.
    """
    state = {"method": type(learner).__name__, "config": _config(learner), "learner": learner.state_dict()}
    write_state(Path(path), stamped(state))


def load(learner: Learner, path: str | Path) -> None:
    """Load what `save` wrote into a learner made with the same network and config; if refused, it is unchanged.

    The network may have more outputs than the one that was saved: it then goes on as if it had grown.
    """
    path = Path(path)
    restore(learner, read_learner(path, learner, same_config=True), path)


def read_learner(path: Path, learner: Learner, same_config: bool = False) -> State:
    """The state in a file that `save` wrote for a learner of this method."""
    try:
        number, state = unstamped(read_state(path, links=True))
    except DataError as error:
        raise DataError(f"{path}: {error}" if str(path) not in str(error) else str(error)) from error
    method = state.get("method")
    if not isinstance(method, str) or not isinstance(state.get("learner"), Mapping):
        raise DataError(f"{path} is a checkpoint of a run, not a saved learner; give a file that autorecall.save wrote")
    method = RENAMED.get(method, method)
    if method != type(learner).__name__:
        raise InputError(f"{path} is of the method {method} but the learner is {type(learner).__name__}; use that one")
    if same_config:
        _check_config(path, upgraded_learner(state.get("config"), number), learner)
    return mapping(state["learner"])


def restore(learner: Learner, saved: State, path: Path) -> None:
    """Load a state into a learner, which may have more outputs; if refused, it is unchanged."""
    before = copy.deepcopy(learner.state_dict())
    put_back, outputs = _cut_outputs(learner, mapping(saved.get("network")))
    try:
        _check_network(path, mapping(saved.get("network")), learner)
        learner.load_state_dict(saved)
        if outputs:
            learner.grow(outputs)
    except Exception as error:  # a user's optimizer or learner may raise anything
        put_back()
        learner.load_state_dict(before)
        if isinstance(error, InputError) and str(path) in str(error):
            raise
        raise InputError(
            f"{path} does not fit this learner ({type(error).__name__}); make it with the network, config and "
            "optimizer that the saved one had"
        ) from error


def _cut_outputs(learner: Learner, saved: State) -> tuple[Undo, int]:
    """For a state with fewer outputs: as few, until it is loaded. The way back, and the outputs it had, or 0."""
    network, same = learner.network, (lambda: None, 0)
    if not _is_smaller(saved, network):
        return same
    layer = output_layers(network)[0]
    there, outputs = _saved_rows(saved, network, layer), layer.out_features
    if not 0 < there < outputs:
        return same
    return set_outputs(network, there, learner.optimizer), outputs


def _is_smaller(saved: State, network: nn.Module) -> bool:
    """Whether only first sizes differ, and none of those saved is larger."""
    own = network.state_dict()
    pairs = [(own[name], value) for name, value in saved.items() if name in own and isinstance(value, Tensor)]
    different = [(mine, theirs) for mine, theirs in pairs if mine.shape != theirs.shape]
    return bool(different) and all(a.shape[1:] == b.shape[1:] and len(a) > len(b) for a, b in different if a.dim())


def _saved_rows(saved: State, network: nn.Module, layer: nn.Linear) -> int:
    for name, module in network.named_modules():
        if module is layer:
            value = saved.get(f"{name}.weight" if name else "weight")
            return len(value) if isinstance(value, Tensor) and value.dim() == 2 else 0
    return 0


def _config(learner: Learner) -> dict[str, object] | None:
    """The settings of a learner; a user's own may have none."""
    config = getattr(learner, "config", None)
    return to_json(config) if is_dataclass(config) else None


def _check_config(path: Path, saved: object, learner: Learner) -> None:
    own = _config(learner)
    if own is None or not isinstance(saved, Mapping):  # from before settings were saved
        return
    there, here = json_differences(saved, own), json_differences(own, saved)
    changed = [
        f"{name} ({there.get(name, 'none')} there, {here.get(name, 'none')} here)"
        for name in dict.fromkeys([*there, *here])
    ]
    if changed:
        raise InputError(f"{path} was saved with other settings: {', '.join(changed)}; use the same config")


def _check_network(path: Path, saved: State, learner: Learner) -> None:
    own = learner.network.state_dict()
    for name in [*own, *saved]:
        there, here = (_kind(state.get(name)) for state in (saved, own))
        if there != here:
            raise InputError(
                f"{path} is for another network: {name} is {there} there and {here} here; make the same network"
            )


def _kind(value: object) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}" if isinstance(value, Tensor) else "missing"
