"""Settings of classes of one's own, from a program: through the whole pipeline, and what they must be like."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autorecall import AutorecallError, ConfigError, Learner, LearnerConfig, NaiveConfig, NetworkConfig, load_model, run
from autorecall.commands.rows import gather, grouped
from autorecall.data import Dataset
from autorecall.errors import InputError
from autorecall.learners.base import methods
from autorecall.storage.extensible import name_of
from autorecall.storage.schema import decode, to_json
from autorecall.storage.state import mapping
from autorecall.storage.state_file import read_state, write_state

from .worlds import config, contents, interrupt


@dataclass(frozen=True)
class Deep:
    """Settings within settings."""

    layers: int = 1


@dataclass(frozen=True)
class Tower(NetworkConfig):
    """A perceptron."""

    width: int = 8
    deep: Deep = field(default_factory=Deep)
    scales: tuple[float, ...] = (1.0, 0.5)
    name: str | None = None

    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        widths = [prod(input_shape), *[self.width] * self.deep.layers]
        hidden = [nn.Linear(*pair) for pair in pairwise(widths)]
        return nn.Sequential(nn.Flatten(), *hidden, nn.ReLU(), nn.Linear(widths[-1], classes))


@dataclass(frozen=True)
class Mine(LearnerConfig):
    """Naive, with a penalty."""

    method: ClassVar[str] = "arm"  # in files its place counts, so this is not taken for ours

    penalty: float = 0.1

    def build(self, network: nn.Module, seed: int) -> Learner:
        return Penalised(network, self, seed)


class Penalised(Learner):
    """One step with a penalty of large logits."""

    def __init__(self, network: nn.Module, config: Mine, seed: int) -> None:
        super().__init__(network, 0.5, seed=seed)
        self.config = config

    def learn(self, x: Tensor, y: Tensor) -> dict[str, float]:
        logits = self.network(x)
        loss = F.cross_entropy(logits, y) + self.config.penalty * logits.square().mean()
        return {"loss": self.descend(loss, "the loss")}


OWN = config(Mine(0.01), network=Tower(6, Deep(2)))


def test_own_classes_go_through_the_whole_pipeline(data: Dataset, tmp_path: Path) -> None:
    result = run("own/bars", OWN, data, tmp_path / "whole", keep_learner=True)
    stored = json.loads((tmp_path / "whole" / "config.json").read_text())
    deep = {"layers": 2}
    assert stored["network"] == {
        **{"kind": f"{__name__}:Tower", "width": 6, "deep": deep, "scales": [1.0, 0.5], "name": None}
    }
    assert stored["learner"] == {"method": f"{__name__}:Mine", "penalty": 0.01}
    assert run("own/bars", OWN, data, tmp_path / "whole", keep_learner=True) == result

    interrupt(OWN, data, tmp_path / "half", 5)
    run("own/bars", OWN, data, tmp_path / "half", keep_learner=True)
    assert contents(tmp_path / "half") == contents(tmp_path / "whole")

    model = load_model(tmp_path / "whole")
    assert model(torch.rand(2, 1, 8, 8)).shape == (2, 4)
    (row,) = grouped(gather(tmp_path)[:1])
    assert row.name == "own/bars"


def test_another_setting_of_ones_own_is_another_run(data: Dataset, tmp_path: Path) -> None:
    run("own/bars", OWN, data, tmp_path)
    with pytest.raises(ConfigError, match=r"differs in learner.penalty \(now 1.0, before 0.01\)"):
        run("own/bars", replace(OWN, learner=Mine(1.0)), data, tmp_path)


def test_a_checkpoint_that_names_another_class_is_refused(data: Dataset, tmp_path: Path) -> None:
    interrupt(OWN, data, tmp_path, 5)
    for path in (tmp_path / "checkpoints").glob("step-*"):
        state = dict(read_state(path))
        stored = mapping(state["run"])
        forged = {**mapping(stored["config"]), "network": {"kind": "os:system"}}
        write_state(path, {**state, "run": {**stored, "config": forged}})
    with pytest.raises(ConfigError, match=r"differs in network.kind \(now .*:Tower, before os:system\)"):
        run("own/bars", OWN, data, tmp_path)


def test_names_in_files_are_ours_or_say_where_a_class_is_defined(monkeypatch: pytest.MonkeyPatch) -> None:
    assert name_of(NaiveConfig) == "naive"
    assert name_of(Mine) == f"{__name__}:Mine"
    assert methods()["arm"].__module__ == "autorecall.learners.arm"
    assert decode(LearnerConfig, {"method": "arm"}, "learner") == methods()["arm"]()
    program = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", program)
    monkeypatch.setattr(Mine, "__module__", "__main__")
    assert name_of(Mine) == "__main__:Mine"  # of a notebook
    program.__file__ = "somewhere/train.py"
    assert name_of(Mine) == "train:Mine"


def test_a_run_from_before_that_named_a_class_by_its_method_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mine, "method", "penalised")
    assert decode(LearnerConfig, {"method": "penalised", "penalty": 0.5}, "learner") == Mine(0.5)
    assert to_json(Mine(0.5)) == {"method": f"{__name__}:Mine", "penalty": 0.5}


@dataclass(frozen=True)
class Duck:
    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Linear(1, classes)


@dataclass(frozen=True)
class Hooked(Tower):
    hook: object = print


@dataclass(frozen=True)
class Strict(Tower):
    def __post_init__(self) -> None:
        if self.width > 100:
            raise ValueError(f"{self.width} is too wide")


def five(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), 5))


@dataclass(frozen=True)
class Five(NetworkConfig):
    def build(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        return five(input_shape, classes)


@pytest.mark.parametrize(
    ("network", "sentence"),
    [
        (Duck(), "network is a Duck; expected settings of a class derived from NetworkConfig"),
        (Mine(), "network is a Mine; expected settings of a class derived from NetworkConfig"),
        (Hooked(), "network.hook is <built-in function print>, declared as object; expected what JSON"),
        (
            Tower(scales=(float("nan"),)),
            "network.scales is (nan,), declared as tuple[float, ...]; expected what JSON",
        ),
        (Tower(width="8"), "network.width is '8', declared as int; expected what JSON"),  # type: ignore[arg-type]
        (Tower(width=-1), "Tower raised RuntimeError: "),
        (Five(), "the network has 5 outputs; expected 4, one for each class"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    data: Dataset, tmp_path: Path, network: NetworkConfig, sentence: str
) -> None:
    with pytest.raises(AutorecallError) as caught:
        run("own/bars", replace(OWN, network=network), data, tmp_path / "run")
    assert sentence in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_stored_setting_that_its_class_refuses_is_one_sentence() -> None:
    with pytest.raises(ConfigError) as caught:
        decode(NetworkConfig, {"kind": f"{__name__}:Strict", "width": 101}, "network")
    assert str(caught.value) == f"network is refused by {__name__}:Strict: 101 is too wide; correct its settings"


class Counting(Penalised):
    """Has a number of a name that history.csv has itself."""

    def learn(self, x: Tensor, y: Tensor) -> dict[str, float]:
        return super().learn(x, y) | {"task": 3.0}


def test_a_number_with_a_name_of_ours_is_refused_at_the_first_step(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mine, "build", lambda self, network, seed: Counting(network, self, seed))
    with pytest.raises(InputError, match=r"^Counting\.learn returned a number called task, which history\.csv has"):
        run("own/bars", OWN, data, tmp_path)
    assert not (tmp_path / "result.json").exists()
