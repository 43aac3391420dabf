"""A learner in a file: everything it needs to resume bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path

from torch import Tensor

from ...errors import DataError, InputError
from ...storage.formats import stamped, unstamped, upgraded_learner
from ...storage.schema import json_differences, to_json
from ...storage.state import State, mapping
from ...storage.state_file import read_state, write_state
from ..base import Learner

RENAMED = {"Distill": "LwF"}  # classes, since format 1


def save(learner: Learner, path: str | Path) -> None:
    """Save a learner to resume from bit for bit: network, optimizer, generator and everything it keeps.

    torch's global generator, which dropout uses, is not the learner's: save `torch.get_rng_state()` for that.
    """
    state = {"method": type(learner).__name__, "config": _config(learner), "learner": learner.state_dict()}
    write_state(Path(path), stamped(state))


def load(learner: Learner, path: str | Path) -> None:
    """Load what `save` wrote into a learner made with the same network and config; if refused, it is unchanged."""
    path = Path(path)
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
    _check_config(path, upgraded_learner(state.get("config"), number), learner)
    saved = mapping(state["learner"])
    _check_network(path, mapping(saved.get("network")), learner)
    before = copy.deepcopy(learner.state_dict())
    try:
        learner.load_state_dict(saved)
    except Exception as error:  # a user's optimizer or learner may raise anything
        learner.load_state_dict(before)
        raise InputError(
            f"{path} does not fit this learner ({type(error).__name__}); make it with the network, config and "
            "optimizer that the saved one had"
        ) from error


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
