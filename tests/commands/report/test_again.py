"""The command in a report makes the run again: parsed, it is the run's config."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import pytest

from autorecall.commands.report.again import command_for
from autorecall.commands.rows import Run, read_run
from autorecall.commands.run import parse
from autorecall.config import RunConfig
from autorecall.presets import PRESETS, changes
from autorecall.storage.extensible import NotImported
from autorecall.storage.schema import with_field

from ..worlds import result

RESULTS = Path(__file__).parents[3] / "results"


def run_of(preset: str, config: RunConfig, **found: object) -> Run:
    return Run(Path("runs/x"), config, dataclasses.replace(result(preset, config.seed), **found))  # type: ignore[arg-type]


def parsed(run: Run) -> RunConfig:
    command = command_for(run)
    assert command is not None
    words = shlex.split(command)
    assert words[:2] == ["autorecall", "run"]
    return parse(words[2:]).run


@pytest.mark.parametrize(
    ("preset", "changed"),
    [
        ("mnist/arm", {"seed": 7, "fraction": 0.5, "split": "val", "threads": 3}),
        ("mnist/arm", {"learner.told": True, "learner.targets": "told", "learner.ascent_steps": 3}),
        ("mnist/arm", {"learner.lag.policy": "novel", "learner.diversity": 1e-5}),
        ("mnist/naive", {"stream.class_order": (3, 1, 2, 0, 4, 5, 6, 7, 8, 9), "stream.tasks": (5, 5)}),
        ("mnist/naive", {"dataset": "folder", "image_size": 28, "skip_broken": True}),
        ("cifar10/arm", {"stream.order_seed": None, "device": "cuda:1"}),
        ("cifar10/patches", {"network.mirror": False}),
    ],
)
def test_settings_come_back(preset: str, changed: dict[str, object]) -> None:
    config = PRESETS[preset].config
    for name, value in changed.items():
        config = with_field(config, name, value)
    assert parsed(run_of(preset, config)) == config


def test_odd_class_names_are_quoted() -> None:
    config = with_field(PRESETS["mnist/naive"].config, "dataset", "folder")
    config = with_field(config, "stream.order", ("a b", "$(reboot)", "it's", '"'))
    assert parsed(run_of("mnist/naive", config)) == config


@pytest.mark.parametrize("place", ["mnist/slda+width=10.0+split=val", "cifar10/gem+margin=1.0+fraction=0.1+split=val"])
def test_runs_of_the_results_come_back(place: str) -> None:
    run = read_run(RESULTS / place / "seed-0")
    again = parsed(run)
    assert changes(again, run.config) == changes(run.config, again) == {}
    assert str(again.threads) == run.result.machine["threads"]


def test_what_no_option_changes_is_taken_from_the_config() -> None:
    config = with_field(PRESETS["mnist/arm"].config, "learner", PRESETS["mnist/lwf"].config.learner)
    assert command_for(run_of("mnist/arm", config)) == "autorecall run --config runs/x/config.json"
    assert command_for(run_of("own/thing", config)) == "autorecall run --config runs/x/config.json"


def test_a_run_that_went_on_or_came_from_python_says_so() -> None:
    config = PRESETS["mnist/arm"].config
    assert command_for(run_of("mnist/arm", config, parent="a b")) == "autorecall learn 'a b' --data DATA"
    assert command_for(run_of("mnist/arm", with_field(config, "dataset", "arrays"))) is None


def test_what_is_a_users_own_is_imported_and_read_again() -> None:
    config = with_field(PRESETS["mnist/arm"].config, "dataset", "folder")
    own = dataclasses.replace(config, network=NotImported("network", {"kind": "mynet:small"}))  # type: ignore[arg-type]
    words = "autorecall run --config runs/x/config.json --network mynet:small --data DATA"
    assert command_for(run_of("mnist/arm", own)) == words
    assert command_for(run_of("mnist/arm", own, parent="a")) == "autorecall learn a --data DATA --network mynet:small"
    lost = dataclasses.replace(config, network=NotImported("network", {"kind": "__main__:Net"}))  # type: ignore[arg-type]
    assert command_for(run_of("mnist/arm", lost)) is None
