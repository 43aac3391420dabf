"""A run as one typed value: it survives JSON, and says in one sentence what is wrong with it."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autorecall import ARMConfig, LagConfig, LearnerConfig, LwFConfig, NaiveConfig
from autorecall.config import RunConfig
from autorecall.data import DATASETS
from autorecall.errors import ConfigError
from autorecall.networks import MLPConfig, NetworkConfig, ResNet18Config
from autorecall.presets import PRESETS
from autorecall.storage.schema import decode, differences, to_json
from autorecall.stream import StreamConfig

SMALL = PRESETS["mnist/arm"].config
METHODS = "adi, arm, er, er-mir, gaussians, gem, gen, gen-mir, icarl, lwf, mean-shift, naive, slda"


def decoded(values: object) -> RunConfig:
    config = decode(RunConfig, values, "config")
    assert isinstance(config, RunConfig)
    return config


def through_text(config: RunConfig) -> RunConfig:
    return decoded(json.loads(json.dumps(to_json(config), allow_nan=False)))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_survives_json(name: str) -> None:
    config = PRESETS[name].config
    assert through_text(config) == config
    assert differences(through_text(config), config) == {}


rate = st.floats(1e-6, 1e6)
weight = st.floats(0, 1e6)
small = st.integers(1, 1000)

start = st.none() | st.integers(0, 1000)
lags = st.builds(LagConfig, policy=st.just("every"), every=st.none() | small, start=start) | st.builds(
    LagConfig, policy=st.just("novel"), start=start, spacing=st.none() | small
)
learners: st.SearchStrategy[LearnerConfig] = st.one_of(
    st.builds(NaiveConfig, learning_rate=rate),
    st.builds(LwFConfig, learning_rate=rate, weight=rate, lag=lags),
    st.builds(
        ARMConfig,
        recalled_images=small,
        ascent_steps=small,
        recall_rate=rate,
        initial=st.sampled_from(["real", "noise"]),
        divergence=weight,
        divergence_form=st.sampled_from(["mixture-first", "jensen-shannon", "cross-entropy"]),
        diversity=weight,
        uncertainty=weight,
        learning_rate=rate,
        recalled_weight=rate,
        real_weight=weight,
        targets=st.sampled_from(["soft", "hard"]),
        repeats=small,
        accumulate_repeats=st.booleans(),
        lag=lags,
    ),
)
networks: st.SearchStrategy[NetworkConfig] = st.one_of(
    st.builds(MLPConfig, hidden=st.lists(small, max_size=4).map(tuple)),
    st.builds(ResNet18Config, channels=small, stem_momentum=st.none() | st.floats(0.01, 1)),
)
streams = st.builds(
    StreamConfig,
    classes_per_task=small,
    class_order=st.lists(st.integers(0, 9), max_size=5).map(tuple),
    batch_size=small,
    passes=small,
    order_seed=st.none() | st.integers(0, 2**40),
    class_pool=st.lists(small, max_size=5).map(tuple),
    stationary=st.booleans(),
) | st.builds(
    StreamConfig, tasks=st.lists(small, max_size=3).map(tuple), order=st.lists(st.text(), max_size=3).map(tuple)
)
runs = st.builds(
    RunConfig,
    dataset=st.sampled_from([*DATASETS, "arrays"]),
    network=networks,
    stream=streams,
    learner=learners,
    fraction=st.floats(0, 1, exclude_min=True),
    split=st.sampled_from(["test", "val"]),
    seed=st.integers(0, 2**63 - 1),
    device=st.sampled_from(["cpu", "cuda:1", "größer"]),
    threads=st.none() | small,
    test_images=st.none() | small,
)


@given(config=runs)
@settings(max_examples=150, deadline=None)
def test_every_possible_config_survives_json(config: RunConfig) -> None:
    again = through_text(config)
    assert again == config
    assert type(again.learner) is type(config.learner)
    assert type(again.network) is type(config.network)


@given(config=runs, other=runs)
@settings(max_examples=60, deadline=None)
def test_two_configs_differ_in_something_or_are_equal(config: RunConfig, other: RunConfig) -> None:
    assert bool(differences(config, other)) == (config != other)


def test_image_size_of_a_folder_survives_json() -> None:
    config = dataclasses.replace(PRESETS["cifar10/naive"].config, dataset="folder", image_size=8)
    assert through_text(config) == config


def test_how_own_data_are_read_survives_json() -> None:
    own = {"dataset": "folder", "test_share": 0.3, "val_share": 0.0, "skip_broken": True}
    config = dataclasses.replace(PRESETS["cifar10/naive"].config, **own)  # type: ignore[arg-type]
    assert through_text(config) == config
    assert through_text(dataclasses.replace(config, dataset="npz", skip_broken=False)).test_share == 0.3


def test_differences_carry_command_line_names() -> None:
    changed = dataclasses.replace(SMALL, seed=3, learner=ARMConfig(ascent_steps=4, lag=LagConfig(policy="every")))
    assert differences(changed, SMALL) == {"seed": 3, "learner.ascent_steps": 4}


def put(values: dict[str, object], path: str, value: object) -> None:
    *folders, last = path.split(".")
    for folder in folders:
        values = cast("dict[str, object]", values[folder])
    values[last] = value


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("seed", True, "config.seed is True; expected a int"),
        ("seed", 1.0, "config.seed is 1.0; expected a int"),
        ("seed", "0", "config.seed is '0'; expected a int"),
        ("seed", None, "config.seed is None; expected a int"),
        ("seed", -1, "seed is -1; expected a whole number from 0"),
        ("seed", 2**63, "config.seed is 9223372036854775808; expected a whole number of less than 2**63"),
        ("fraction", "1", "config.fraction is '1'; expected a float"),
        ("fraction", False, "config.fraction is False; expected a float"),
        ("fraction", 0, "fraction is 0.0; expected a number above 0 and at most 1"),
        ("fraction", 2, "fraction is 2.0; expected a number above 0 and at most 1"),
        ("fraction", math.nan, "config.fraction is nan; expected a finite number"),
        ("fraction", math.inf, "config.fraction is inf; expected a finite number"),
        ("threads", 0, "threads is 0; expected 1 to 1024"),
        ("threads", 2**40, "threads is 1099511627776; expected 1 to 1024"),
        ("threads", True, "config.threads is True; expected a int"),
        ("device", 0, "config.device is 0; expected a str"),
        ("split", "train", "config.split is 'train'; expected one of test, val"),
        (
            "dataset",
            "mnits",
            "dataset is 'mnits'; expected one of mnist, mnist-full, fashion-mnist, cifar10",
        ),
        ("dataset", None, "config.dataset is None; expected a str"),
        ("checkpoint_seconds", -1, "checkpoint_seconds is -1.0; expected a number of at least 0"),
        ("checkpoint_seconds", math.nan, "config.checkpoint_seconds is nan; expected a finite number"),
        ("checkpoint_seconds", math.inf, "config.checkpoint_seconds is inf; expected a finite number"),
        ("image_size", 28, "image_size is 28 but mnist has a size of its own; leave it out"),
        ("test_images", 0, "test_images is 0; expected 1 to 1,000,000,000"),
        ("test_images", 2**62, "test_images is 4611686018427387904; expected 1 to 1,000,000,000"),
        ("test_share", 0.3, "test_share is 0.3 but mnist has splits of its own; leave it out"),
        ("test_share", 1, "test_share is 1.0; expected a number above 0 and below 1"),
        ("val_share", 0.3, "val_share is 0.3 but mnist has splits of its own; leave it out"),
        ("val_share", -1, "val_share is -1.0; expected a number of at least 0 and below 1"),
        ("skip_broken", True, "skip_broken is set but mnist is not a folder of your own; leave it out"),
        ("skip_broken", 1, "config.skip_broken is 1; expected a bool"),
        ("stream.tasks", [2, 0], "stream.tasks is (2, 0); expected at least one class in every task"),
        ("stream.tasks", 2, "config.stream.tasks is 2; expected a list"),
        ("stream.order", ["a", 1], "config.stream.order[1] is 1; expected a str"),
        ("stream.order", "abc", "config.stream.order is 'abc'; expected a list"),
        ("sede", 1, "config.sede is not a field of RunConfig; remove it"),
        (
            "network",
            {"kind": "transformer"},
            "config.network names 'transformer'; expected a kind or method of descriptor, ",
        ),
        ("network.hidden", 400, "config.network.hidden is 400; expected a list"),
        ("network.hidden", [400, 0], "network.hidden is (400, 0); every width must be from 1 to 1,000,000"),
        ("network.hidden", [400, True], "config.network.hidden[1] is True; expected a int"),
        ("network.width", 3, "config.network.width is not a field of MLPConfig; remove it"),
        ("stream", [], "config.stream is []; expected an object with the fields of StreamConfig"),
        ("stream.passes", 0, "stream.passes is 0; expected 1 to 1,000,000"),
        ("stream.stationary", 0, "config.stream.stationary is 0; expected a bool"),
        ("stream.class_order", "0123", "config.stream.class_order is '0123'; expected a list"),
        ("stream.shuffle", True, "config.stream.shuffle is not a field of StreamConfig; remove it"),
        (
            "learner",
            {"method": "ewc"},
            "config.learner names 'ewc'; expected a kind or method of " + METHODS,
        ),
        (
            "learner",
            None,
            "config.learner names None; expected a kind or method of " + METHODS,
        ),
        (
            "learner",
            {"method": "naive", "repeats": 3},
            "config.learner.repeats is not a field of NaiveConfig; remove it",
        ),
        ("learner.ascent_steps", 0, "learner.ascent_steps is 0; expected 1 to 1,000,000"),
        ("learner.ascent_steps", 1e3, "config.learner.ascent_steps is 1000.0; expected a int"),
        ("learner.recalled_images", -1, "learner.recalled_images is -1; expected 1 to 1,000,000"),
        ("learner.recall_rate", -25.0, "learner.recall_rate is -25.0; expected a number above 0"),
        ("learner.recall_rate", math.nan, "config.learner.recall_rate is nan; expected a finite number"),
        ("learner.diversity", math.nan, "config.learner.diversity is nan; expected a finite number"),
        ("learner.learning_rate", math.inf, "config.learner.learning_rate is inf; expected a finite number"),
        ("learner.initial", "zeros", "config.learner.initial is 'zeros'; expected one of real, noise, shift"),
        ("learner.lag.policy", "never", "config.learner.lag.policy is 'never'; expected one of every, novel, boundary"),
        ("learner.lag.every", 0, "learner.lag.every is 0; expected at least 1 batch"),
        (
            "learner.lag.every",
            10**15,
            "learner.lag.every is 1000000000000000; expected at least 1 batch, and at most 1",
        ),
        ("learner.lag.start", 10**15, "learner.lag.start is 1000000000000000; expected at least 0 batches, and at"),
        ("learner.lag.evry", 1, "config.learner.lag.evry is not a field of LagConfig; remove it"),
    ],
)
def test_a_wrong_field_is_refused_in_one_sentence_that_names_it(path: str, value: object, sentence: str) -> None:
    values = copy.deepcopy(to_json(SMALL))
    put(values, path, value)
    # NaN and infinity are what json.loads makes of NaN and Infinity.
    read: dict[str, object] = json.loads(json.dumps(values))
    with pytest.raises(ConfigError) as caught:
        decoded(read)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["dataset", "network", "stream", "learner"])
def test_a_field_without_default_must_be_there(name: str) -> None:
    values = to_json(SMALL)
    del values[name]
    with pytest.raises(ConfigError, match=rf"^config\.{name} is missing; add it$"):
        decoded(values)


def test_fields_with_defaults_may_be_left_out() -> None:
    values = to_json(SMALL)
    own = ("image_size", "test_share", "val_share", "skip_broken")
    for name in ("fraction", "split", "seed", "device", "threads", "test_images", *own):
        del values[name]
    for name in ("tasks", "order"):
        del values["stream"][name]  # type: ignore[attr-defined]
    assert decoded(values) == dataclasses.replace(SMALL, threads=None)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"dataset": "nonsense"},
            "dataset is 'nonsense'; expected one of mnist, mnist-full, fashion-mnist, cifar10",
        ),
        ({"dataset": "x" * 10**6}, "dataset is 'xxx"),
        ({"split": "foo"}, "split is 'foo'; expected one of test, val"),
    ],
    ids=["dataset", "long", "split"],
)
def test_a_word_that_is_none_is_refused_from_python_as_well(changes: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        dataclasses.replace(SMALL, **changes)  # type: ignore[arg-type]
    assert str(caught.value).startswith(sentence)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("size", [0, -1, 1025])
def test_an_image_size_that_makes_no_image_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match=f"^image_size is {size}; expected 1 to 1024"):
        RunConfig("folder", ResNet18Config(), StreamConfig(), NaiveConfig(), image_size=size)


NUMBERS = ("fraction", "seed", "threads", "checkpoint_seconds", "image_size", "test_images", "test_share", "val_share")


@pytest.mark.parametrize("value", [10**400, 10**5000, -(10**5000)], ids=["400", "5000", "-5000"])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_of_any_size_is_refused_from_python_as_well(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} is .*; (expected|leave)") as caught:
        dataclasses.replace(SMALL, **{name: value})  # type: ignore[arg-type]
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("value", [10**400, 10**5000, math.nan, math.inf, -math.inf, "x", None, [1.0]], ids=range(8))
def test_a_setting_that_is_no_number_of_use_is_refused_from_python_as_well(value: object) -> None:
    learner = SMALL.learner
    assert isinstance(learner, ARMConfig)
    for name in ("recall_rate", "diversity", "recalled_images"):
        with pytest.raises(ConfigError, match=rf"^learner\.{name} is .*; expected ") as caught:
            dataclasses.replace(learner, **{name: value})  # type: ignore[arg-type]
        assert len(str(caught.value)) < 300


def test_a_config_cannot_be_changed_in_place() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SMALL.seed = 1  # type: ignore[misc]
