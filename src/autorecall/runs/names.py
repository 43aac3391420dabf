"""The folder that a run gets: OUT/<dataset>/<method>+<what differs from the preset>/seed-<N>."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from ..config import RunConfig
from ..errors import AutorecallError
from ..presets import PRESETS, changes
from ..storage.extensible import NotImported
from ..storage.schema import differences, names_of_fields
from .folder import read_config

OWN = {"network.kind": "network", "learner.method": "learner"}  # module:name of a class
LONGEST = 100  # characters of a name; more becomes a checksum
NO_QUOTING = re.compile(r"[^A-Za-z0-9_.,-]+")


def run_folder(out: Path, preset: str, config: RunConfig) -> Path:
    """Where a run goes. One that earlier versions put into the folder of the unchanged preset is found there."""
    method, seed = preset.split("/")[1], f"seed-{config.seed}"
    folder, before = out / config.dataset / _named(method, preset, config) / seed, out / config.dataset / method / seed
    return before if folder != before and not folder.exists() and _holds(before, preset, config) else folder


def _named(method: str, preset: str, config: RunConfig) -> str:
    """The method and every setting that differs from the preset, in letters that no shell treats specially."""
    if preset not in PRESETS:
        return method
    changed = changes(config, PRESETS[preset].config)
    if changed.pop("dataset", None) is not None:  # which has a folder; what counts then is the preset's
        changed = {"preset": preset.split("/")[0]} | changed
    if "network.kind" in changed and not isinstance(config.network, NotImported):
        unusual = differences(config.network, type(config.network)())  # from what is usual for its kind
        others = {name: value for name, value in changed.items() if not name.startswith("network.")}
        kind = {"network.kind": changed["network.kind"]}
        changed = kind | {f"network.{name}": value for name, value in unusual.items()} | others
    short = short_names(names_of_fields(config))
    own = {name: str(value).replace(":", ".") for name, value in changed.items() if name in OWN}
    parts = [f"{short.get(name, name)}={_written(own.get(name, value))}" for name, value in changed.items()]
    name = "+".join([method, *parts])
    replaced = [value for value in (changed | own).values() if _is_ambiguous(value)]
    return _with_checksum(name, "".join(map(repr, replaced))) if replaced else shortened(name)


def shortened(name: str) -> str:
    """A name that file systems accept: of a long one the beginning, and a checksum."""
    return _with_checksum(name) if len(name) > LONGEST else name


def _with_checksum(name: str, more: str = "") -> str:
    checksum = hashlib.sha256((name + more).encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{name[: LONGEST - 9]}+{checksum}"


def short_names(names: Iterable[str]) -> dict[str, str]:
    """The last word of each name, if no other ends alike."""
    names = list(names)
    last = [OWN.get(name, name.rsplit(".", 1)[-1]) for name in names]
    return {name: end if last.count(end) == 1 else name for name, end in zip(names, last, strict=True)}


def _written(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(_written, value)) or "none"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return NO_QUOTING.sub("-", str(value).replace("e+", "e"))


def _is_ambiguous(value: object) -> bool:
    """Whether another value could be written the same way: names of classes may have any letters."""
    if isinstance(value, list | tuple):
        return any(isinstance(inner, str) and ("," in inner or _is_ambiguous(inner)) for inner in value)
    return isinstance(value, str) and (not value or NO_QUOTING.search(value) is not None)


def _holds(folder: Path, preset: str, config: RunConfig) -> bool:
    try:
        stored_preset, stored = read_config(folder / "config.json")
    except AutorecallError:
        return False
    return stored_preset == preset and not changes(config, stored) and not changes(stored, config)
