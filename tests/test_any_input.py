"""Whatever configs, arrays and files hold: a result or one sentence, never a traceback, a hang or half a file."""

from __future__ import annotations

import copy
import dataclasses
import json
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autorecall import ARMConfig, NaiveConfig, RunConfig, cli, from_arrays, run
from autorecall.data import Dataset
from autorecall.errors import AutorecallError, InterruptedRunError
from autorecall.networks import MLPConfig
from autorecall.storage.formats import stamped
from autorecall.storage.schema import to_json
from autorecall.stream import StreamConfig


def examples(count: int) -> settings:
    return settings(max_examples=count, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def data() -> Dataset:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (40, 1, 6, 6), dtype=np.uint8), np.arange(40) % 4
    return dataclasses.replace(from_arrays((images, labels), (images, labels), (images, labels)), name="mnist")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Dataset) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("autorecall.data.load", lambda *_, **__: data)
    return tmp_path


@contextmanager
def no_hang() -> Iterator[None]:
    """A hang is an error, told by the time of the processor, of which a busy machine takes none away."""

    def late(*_: object) -> None:
        raise TimeoutError("still at work after a minute of the processor's time")

    found = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, 60)  # of what takes less than a tenth of a second
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, found)


def say(*words: str) -> int:
    with no_hang():
        try:
            return cli.dispatch(words)
        except SystemExit as end:  # how tyro ends after --help or a word it does not know
            return int(end.code or 0)


def no_half_file(folder: Path) -> None:
    for path in folder.rglob("*"):
        assert path.suffix != ".tmp", path
        assert path.name != ".lock", path
        if path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))


def small(learner: NaiveConfig | ARMConfig) -> RunConfig:
    return RunConfig("mnist", MLPConfig((4,)), StreamConfig(2, batch_size=4), learner, threads=1, split="val")


CONFIGS = [
    stamped({"preset": "mnist/naive"} | to_json(small(NaiveConfig()))),
    stamped({"preset": "mnist/arm"} | to_json(small(ARMConfig(recalled_images=5, ascent_steps=2)))),
]
NUMBERS: list[object] = [None, True, False, -1, 0, 1, 2, 3, 2**70, -0.0, 0.5, 1e300, 1e-300]
NESTED: list[object] = [[], [1], [2, 3], [[]], {}, {"": {}}, {"method": "naive"}, {"kind": "mlp"}]
TEXTS = ["", "x", "\0", "naive", "arm", "[red]", "../..", "\ud800", "\x1b[2J", "cpu", "a" * 500]
ODD = st.sampled_from([*NUMBERS, *NESTED, *TEXTS])


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


@examples(100)
@given(st.data())
def test_any_config_runs_or_is_refused(place: Path, capsys: pytest.CaptureFixture[str], drawn: st.DataObject) -> None:
    config = drawn.draw(st.sampled_from(CONFIGS))
    for _ in range(drawn.draw(st.integers(1, 2))):
        path = drawn.draw(st.sampled_from([*fields(config), ("unknown",)]))
        config = changed(config, path, drawn.draw(ODD), drawn.draw(st.booleans()) and drawn.draw(st.booleans()))
    (place / "given.json").write_text(json.dumps(config))
    shutil.rmtree(place / "out", ignore_errors=True)
    code = say("run", "--config", "given.json", "--out", "out")
    printed = capsys.readouterr()
    assert code in (0, 1, 2)
    if code:
        assert printed.err.startswith("autorecall: ")
        assert printed.err.count("\n") == 1
        assert len(printed.err) < 1000
        assert "\x1b" not in printed.err
    no_half_file(place)


OPTIONS = "mnist/naive mnist/arm --seed --fraction --threads --learner.learning-rate --checkpoint-seconds --split val"
VALUES = "--fresh -1 0 1 nan inf 1e999 x -- --config --help \x1b[2J"
WORDS = st.sampled_from([*OPTIONS.split(), *VALUES.split(), ""])


@examples(30)
@given(st.lists(WORDS, max_size=4))
def test_any_words_run_or_are_refused(place: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    shutil.rmtree(place / "out", ignore_errors=True)
    assert say("run", *words, "--network.hidden", "4", "--out", "out") in (0, 1, 2)
    assert "Traceback" not in capsys.readouterr().err
    no_half_file(place)


PIXELS = st.sampled_from([0, 1, 7, 255, 0.5] * 4 + [-1, 256, 10**12, np.nan, np.inf, -np.inf, 1e300])
KINDS = st.sampled_from(["uint8", "float32"] * 4 + ["int64", "float16", "float64", "bool", "object", "complex64", "U3"])
SHAPES = st.sampled_from(
    [(6, 3), (6, 1, 4, 4), (6, 3, 2, 2)] * 3 + [(), (0,), (6,), (6, 0), (6, 4, 4), (6, 1, 1, 1, 2), (1, 4)]
)


@st.composite
def arrays(draw: st.DrawFn) -> tuple[object, object]:
    shape = draw(SHAPES)
    with np.errstate(all="ignore"):
        inputs = np.resize(np.array(draw(st.lists(PIXELS, min_size=1, max_size=5)), dtype=object), shape)
        with suppress(OverflowError, TypeError, ValueError):
            inputs = inputs.astype(draw(KINDS))
    count = draw(st.sampled_from([len(inputs) if shape else 0, 6, 6, 6, 0]))
    labels = draw(
        st.lists(st.sampled_from([0, 1]) | st.sampled_from([0, 1, 2, -1, 0.5]), min_size=count, max_size=count)
    )
    return inputs, labels


@examples(60)
@given(arrays(), st.booleans(), st.sampled_from([1, 2, 4]))
def test_any_arrays_are_learned_or_refused(
    place: Path, pair: tuple[object, object], recalls: bool, batch_size: int
) -> None:
    learner = ARMConfig(recalled_images=3, ascent_steps=1) if recalls else NaiveConfig()
    stream = StreamConfig(1, batch_size=batch_size)
    config = RunConfig("arrays", MLPConfig((4,)), stream, learner, threads=1)
    said = ""
    shutil.rmtree(place / "out", ignore_errors=True)
    with no_hang():
        try:
            run("own/arrays", config, from_arrays(pair, pair), place / "out")  # type: ignore[arg-type]
        except AutorecallError as error:
            said = str(error)
    assert "\n" not in said
    no_half_file(place)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory, data: Dataset) -> tuple[Path, Path]:
    """A run that was interrupted, and the same one to its end."""
    folder = tmp_path_factory.mktemp("half")
    answers = iter([False] * 6 + [True])
    config = dataclasses.replace(small(NaiveConfig()), checkpoint_seconds=0.0)
    with pytest.raises(InterruptedRunError):
        run("mnist/naive", config, data, folder / "half", stop=answers.__next__)
    run("mnist/naive", config, data, folder / "whole")
    return folder / "half", folder / "whole"


@examples(50)
@given(st.data())
def test_any_damage_is_survived_or_named(
    place: Path, capsys: pytest.CaptureFixture[str], half: tuple[Path, Path], drawn: st.DataObject
) -> None:
    """Of any file of a run, finished or not: then the same command gives the same result, or one sentence."""
    finished = drawn.draw(st.booleans())
    folder = place / "out" / "mnist" / "naive" / "seed-0"
    shutil.rmtree(place / "out", ignore_errors=True)
    shutil.copytree(half[1] if finished else half[0], folder)
    (place / "given.json").write_text(json.dumps(CONFIGS[0]))
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    damaged = drawn.draw(st.lists(st.sampled_from(files), min_size=1, max_size=3, unique=True))
    for path in damaged:
        content = bytearray(path.read_bytes())
        place_of = drawn.draw(st.integers(0, len(content) - 1))
        match drawn.draw(st.sampled_from(["flip", "cut", "grow", "swap", "remove"])):
            case "flip":
                content[place_of] ^= 1 << drawn.draw(st.integers(0, 7))
            case "cut":
                del content[place_of:]
            case "grow":
                content[place_of:place_of] = drawn.draw(st.binary(max_size=40))
            case "swap":
                content = bytearray(b"{" * 50_000 if drawn.draw(st.booleans()) else b'{"preset": 1}')
            case _:
                path.unlink()
                continue
        path.write_bytes(content)
    code = say("run", "--config", "given.json", "--out", "out")
    printed = capsys.readouterr()
    assert code in (0, 2)
    if code:
        assert printed.err.splitlines()[-1].startswith("autorecall: ")
        # Only a finished run can be spoilt, or one whose config can no longer be known.
        assert finished or folder / "config.json" in damaged
    elif not finished:
        for name in ("history.csv", "result.json"):
            assert without_seconds(folder / name) == without_seconds(half[1] / name)
    assert not list(folder.rglob("*.tmp"))


def without_seconds(path: Path) -> object:
    if path.suffix != ".json":
        return path.read_bytes()
    values = json.loads(path.read_text())
    del values["seconds"]
    return values
