"""save and load: a learner goes on bit for bit, and one that a file does not fit is refused and unchanged."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autorecall import ER, BoundaryConfig, ERConfig, Learner, load, save
from autorecall.errors import DataError, InputError
from autorecall.storage.state_file import write_state

from ..worlds import ALL, assert_same, batch, conv, learner, mlp

Make = Callable[[], nn.Module]


@pytest.mark.parametrize(("make", "observed"), [(mlp, 0), (mlp, 1), (conv, 5)])
@pytest.mark.parametrize("method", ALL)
def test_a_loaded_learner_goes_on_bit_for_bit(tmp_path: Path, method: str, make: Make, observed: int) -> None:
    first, second = learner(method, make()), learner(method, make(), seed=5)
    for number in range(observed):
        first.observe(*batch(number))
    second.observe(*batch(30))
    save(first, str(tmp_path / "learner"))
    load(second, tmp_path / "learner")
    for number in range(observed, observed + 4):
        assert_same(second.observe(*batch(number)), first.observe(*batch(number)))
    assert_same(second.state_dict(), first.state_dict())


def with_adam(make: Make, method: str = "arm") -> Learner:
    network = make()
    return learner(method, network, torch.optim.Adam(network.parameters(), lr=0.01))


def test_an_optimizer_of_the_user_is_saved_too(tmp_path: Path) -> None:
    first, second = with_adam(conv), with_adam(conv)
    for number in range(3):
        first.observe(*batch(number))
    save(first, tmp_path / "learner")
    load(second, tmp_path / "learner")
    for number in range(3, 6):
        assert_same(second.observe(*batch(number)), first.observe(*batch(number)))


OPTIMIZERS: dict[str, dict[str, Any]] = {
    **{
        name: {}
        for name in ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta", "Adagrad", "ASGD", "Rprop")
    },
    **{"Adafactor": {}, "RMSprop": {"momentum": 0.5}},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer_of_torch_is_saved_loaded_and_grows(tmp_path: Path, name: str) -> None:
    """With settings that differ between groups of parameters."""

    def made() -> Learner:
        network = mlp()
        first, *rest = network.parameters()
        other = {"amsgrad": True} if name == "Adam" else {"momentum": 0.0} if name == "RMSprop" else {}
        groups = [{"params": [first]}, {"params": rest, **other}]
        kind: Any = getattr(torch.optim, name)
        return learner("naive", network, kind(groups, lr=0.01, **OPTIMIZERS[name]))

    first, second = made(), made()
    for number in range(3):
        first.observe(*batch(number))
    save(first, tmp_path / "learner")
    load(second, tmp_path / "learner")
    for number in range(3, 5):  # torch makes all numbers of a state as precise as the parameters
        assert_same(second.observe(*batch(number)), first.observe(*batch(number)), 1e-9)
    second.grow(9)
    second.observe(*batch(5))


def wider() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(60, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 6)
    ).double()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: learner("lwf", mlp()), "is of the method ARM but the learner is LwF; use that one"),
        (lambda: learner("arm", conv()), "is for another network: 0.weight is missing there and float64 (4, 2, 3, 3)"),
        (lambda: learner("arm", wider()), "1.weight is float64 (8, 60) there and float64 (9, 60) here"),
        (lambda: learner("arm", mlp().float()), "1.weight is float64 (8, 60) there and float32 (8, 60) here"),
        (lambda: learner("arm", nn.Sequential(*mlp().children(), nn.Linear(6, 6))), "6.weight is missing there"),
        (lambda: learner("arm", nn.Sequential(*list(mlp().children())[:4])), "5.weight is float64 (6, 7) there"),
        (lambda: with_frozen_part(), "does not fit this learner (InputError); make it with the network, config and"),
    ],
    ids=["method", "kind", "width", "precision", "more layers", "fewer layers", "optimizer"],
)
def test_a_learner_of_another_kind_is_refused_and_unchanged(
    tmp_path: Path, make: Callable[[], Learner], sentence: str
) -> None:
    saved = learner("arm", mlp())
    saved.observe(*batch(0))
    save(saved, tmp_path / "learner")
    other = make()
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(InputError) as caught:
        load(other, tmp_path / "learner")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert_same(other.state_dict(), before)


def with_frozen_part() -> Learner:
    network = mlp()
    return learner("arm", network, torch.optim.SGD(list(network.parameters())[:2], lr=0.1))


def test_a_learner_with_other_settings_is_refused_and_unchanged(tmp_path: Path) -> None:
    many = ER(mlp(), ERConfig(kept_images=200))
    for number in range(5):
        many.observe(*batch(number))
    save(many, tmp_path / "learner")
    few = ER(mlp(), ERConfig(kept_images=5, tasks=BoundaryConfig("every", every=3)))
    before = copy.deepcopy(few.state_dict())
    with pytest.raises(
        InputError, match=r"saved with other settings: kept_images \(200 there, 5 here\), tasks\.policy"
    ):
        load(few, tmp_path / "learner")
    assert_same(few.state_dict(), before)


def test_a_learner_that_was_saved_without_its_settings_is_taken(tmp_path: Path) -> None:
    saved = learner("naive", mlp())
    write_state(tmp_path / "learner", {"method": "Naive", "learner": saved.state_dict()})
    load(learner("naive", mlp(seed=1)), tmp_path / "learner")


def test_a_checkpoint_of_a_run_is_no_learner(tmp_path: Path) -> None:
    write_state(tmp_path / "state", {"run": {}, "learner": learner("naive", mlp()).state_dict()})
    with pytest.raises(DataError, match="is a checkpoint of a run, not a saved learner"):
        load(learner("naive", mlp()), tmp_path / "state")


def test_a_damaged_learner_is_refused_and_nothing_changed(tmp_path: Path) -> None:
    save(learner("naive", mlp()), tmp_path / "learner")
    content = bytearray((tmp_path / "learner").read_bytes())
    content[-1] ^= 1
    (tmp_path / "learner").write_bytes(content)
    other = learner("naive", mlp(seed=1))
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(DataError, match="is damaged"):
        load(other, tmp_path / "learner")
    assert_same(other.state_dict(), before)
