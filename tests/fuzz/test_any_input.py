"""Whatever configs, words and arrays are given: a result or one sentence, never a traceback, a hang or half a file."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autorecall import ARMConfig, NaiveConfig, RunConfig, from_arrays, run
from autorecall.errors import AutorecallError
from autorecall.networks import MLPConfig
from autorecall.stream import StreamConfig

from .worlds import CONFIGS, ODD, changed, examples, fields, no_half_file, no_hang, one_sentence, say


@examples(60)
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
        one_sentence(printed.err)
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
