"""A tiny dataset, short runs on it, odd values, and what holds after any command, shared by the fuzz tests.

Fuzz tests draw the same few examples every time in the suite; `make fuzz` draws others, for as long as it is told to.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from autorecall import ARMConfig, LearnerConfig, NaiveConfig, RunConfig, cli, from_arrays
from autorecall.data import Dataset
from autorecall.networks import MLPConfig
from autorecall.storage.formats import stamped
from autorecall.storage.schema import to_json
from autorecall.stream import StreamConfig

MORE = 20 if "AUTORECALL_FUZZ" in os.environ else 1
LIMIT = 60  # seconds, of what takes a tenth of one

NUMBERS: list[object] = [None, True, False, -1, 0, 1, 2, 3, 2**70, 10**400, -0.0, 0.5, 1e300, 1e-300]
NESTED: list[object] = [[], [1], [2, 3], [[]], {}, {"": {}}, {"method": "naive"}, {"kind": "mlp"}]
TEXTS = ["", "x", "\0", "naive", "arm", "[red]", "../..", "\ud800", "\x1b[2J", "\u202e", "<script>", "cpu", "a" * 500]
ODD = st.sampled_from([*NUMBERS, *NESTED, *TEXTS])


def examples(count: int) -> settings:
    """So many; an example that fails is not made smaller, which takes long with whole runs."""
    phases = (Phase.explicit, Phase.generate)
    return settings(max_examples=MORE * count, suppress_health_check=list(HealthCheck), phases=phases)


def tiny() -> Dataset:
    """Four classes, one of which can be told from the others by nothing."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (40, 1, 6, 6), dtype=np.uint8), np.arange(40) % 4
    return dataclasses.replace(from_arrays((images, labels), (images, labels), (images, labels)), name="mnist")


def small(learner: LearnerConfig, **changes: object) -> RunConfig:
    """Two tasks of five batches."""
    config = RunConfig("mnist", MLPConfig((4,)), StreamConfig(2, batch_size=4), learner, threads=1, split="val")
    return dataclasses.replace(config, **changes)  # type: ignore[arg-type]


CONFIGS = [
    stamped({"preset": "mnist/naive"} | to_json(small(NaiveConfig()))),
    stamped({"preset": "mnist/arm"} | to_json(small(ARMConfig(recalled_images=5, ascent_steps=2)))),
]


@contextmanager
def no_hang() -> Iterator[None]:
    """A hang is an error: at work for a minute of the processor's time, or waiting for five of the clock's."""

    def late(number: int, _: object) -> None:
        raise TimeoutError(f"still there after {LIMIT} seconds ({signal.Signals(number).name})")

    found = {number: signal.signal(number, late) for number in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, LIMIT)  # of which a busy machine takes none away
    signal.setitimer(signal.ITIMER_REAL, 5 * LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in found.items():
            signal.signal(number, handler)


def say(*words: str) -> int:
    """Give a command, and return its exit code."""
    with no_hang():
        try:
            return cli.dispatch(words)
        except SystemExit as end:  # how tyro ends after --help or a word it does not know
            return int(end.code or 0)


def one_sentence(text: str) -> None:
    """As every error is told."""
    assert text.startswith("autorecall: ")
    assert text.count("\n") == 1
    assert len(text) < 1000
    assert text.removesuffix("\n").isprintable()


def no_half_file(folder: Path) -> None:
    """Whatever was begun was ended or taken back."""
    for path in folder.rglob("*"):
        assert path.suffix != ".tmp", path
        assert path.name != ".lock", path
        if path.suffix == ".json" and path.is_file():
            json.loads(path.read_text(encoding="utf-8"))


def fields(values: Mapping[str, object], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for name, value in values.items():
        found.append((*path, name))
        if isinstance(value, Mapping):
            found += fields(value, (*path, name))
    return found


def changed(values: Mapping[str, object], path: tuple[str, ...], value: object, remove: bool) -> dict[str, object]:
    new = copy.deepcopy(dict(values))
    inner: dict[str, object] = new
    for name in path[:-1]:
        step = inner[name]
        if not isinstance(step, dict):
            return new
        inner = step
    if remove:
        inner.pop(path[-1], None)
    else:
        inner[path[-1]] = value
    return new
