"""Parts of saved states: made fit for a file, and checked when they come back."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch

from autorecall.errors import InputError
from autorecall.storage.state import (
    for_optimizer,
    integer,
    integers,
    labels,
    mapping,
    refuse_not_finite,
    savable,
    tensor,
)


def test_names_become_text_and_tuples_lists() -> None:
    kept = torch.ones(2)
    found = savable({1: (1, [2.5, None]), "a": {2: kept, "b": True}})
    assert found == {"1": [1, [2.5, None]], "a": {"2": kept, "b": True}}


@pytest.mark.parametrize("value", [{1, 2}, b"bytes", print, 1j])
def test_what_a_file_cannot_hold_is_not_savable(value: object) -> None:
    with pytest.raises(TypeError, match=f"^cannot save a {type(value).__name__}$"):
        savable({"a": [value]})


def test_an_optimizer_takes_back_what_was_made_savable() -> None:
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.Adam([weight])
    weight.square().sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    kept = savable(state)
    assert isinstance(kept, dict)
    another = torch.optim.Adam([weight])
    restored = for_optimizer(another, kept)
    assert len(mapping(restored["state"])) == 1
    torch.testing.assert_close(mapping(restored["state"])[0], state["state"][0], rtol=0, atol=0)  # type: ignore[index]
    another.load_state_dict(restored)


WRONG_OPTIMIZERS: dict[str, Callable[[dict[str, dict[object, object]], dict[str, object]], object]] = {
    "a rate that is a word": lambda _, group: group.update(lr="fast"),
    "a rate that is none": lambda _, group: group.update(lr=math.nan),
    "a rate that is a tensor": lambda _, group: group.update(lr=torch.ones(2)),
    "a switch that is a number": lambda _, group: group.update(amsgrad=3),
    "three betas": lambda _, group: group.update(betas=[0.9, 0.99, 0.999]),
    "betas of words": lambda _, group: group.update(betas=["a", "b"]),
    "other parameters": lambda _, group: group.update(params=[0]),
    "a parameter twice": lambda _, group: group.update(params=[0, 0]),
    "a parameter that is none": lambda state, _: state.update({"5": {"step": torch.ones(())}}),
    "moments of another shape": lambda state, _: state["0"].update(exp_avg=torch.ones(7)),
    "a negative number of steps": lambda state, _: state["0"].update(step=torch.tensor(-1.0)),
    "moments that are zero": lambda state, _: state["0"].update(exp_avg=0),
    "moments that are one number": lambda state, _: state["0"].update(exp_avg=torch.ones(())),
    "moments that are whole": lambda state, _: state["0"].update(exp_avg=torch.ones(3, dtype=torch.int64)),
    "other moments": lambda state, _: state["1"].pop("exp_avg"),
    "steps that are true": lambda state, _: state["0"].update(step=torch.tensor(True)),
    "no moments": lambda state, _: state["0"].update(exp_avg=None),
    "a huge whole number": lambda _, group: group.update(weight_decay=2**70),
    "moments that are a word": lambda state, _: state["0"].update(exp_avg="none"),
}


@pytest.mark.parametrize("wrong", WRONG_OPTIMIZERS)
def test_what_an_optimizer_would_fail_over_later_is_refused(wrong: str) -> None:
    weights = [torch.ones(3, requires_grad=True) for _ in range(2)]
    optimizer = torch.optim.Adam(weights)
    (weights[0] * weights[1]).sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    kept = savable(optimizer.state_dict())
    assert isinstance(kept, dict)
    WRONG_OPTIMIZERS[wrong](kept["state"], kept["param_groups"][0])
    with pytest.raises(InputError, match=r"^a saved state has .* where .* belongs; it is damaged$"):
        for_optimizer(torch.optim.Adam(weights), kept)


def test_a_group_that_is_missing_is_refused_and_a_setting_of_another_version_is_not() -> None:
    weight = torch.ones(3, requires_grad=True)
    kept = savable(torch.optim.SGD([weight], lr=0.5).state_dict())
    assert isinstance(kept, dict)
    del kept["param_groups"][0]["nesterov"]
    kept["param_groups"][0]["of_tomorrow"] = 1
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.load_state_dict(for_optimizer(optimizer, kept))
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["nesterov"]) == (0.5, False)
    with pytest.raises(InputError, match=r"^a saved state has 0 groups of parameters where 1 belongs"):
        for_optimizer(optimizer, {"state": {}, "param_groups": []})


@pytest.mark.parametrize("value", [math.nan, math.inf, torch.tensor([1.0, math.nan]), [1, [-math.inf]]])
def test_a_number_that_is_not_finite_is_refused_by_its_name(value: object) -> None:
    refuse_not_finite({"a": {"b": [1, None, "nan", True, torch.tensor([1, 2]), 10**400]}})
    with pytest.raises(InputError, match=r"a\.b\[1\]"):
        refuse_not_finite({"a": {"b": [1.0, value]}})


def test_labels_are_those_that_belong_there() -> None:
    assert labels(torch.tensor([0, 2]), 3).tolist() == [0, 2]
    assert labels(torch.zeros(0, dtype=torch.int64), 0).tolist() == []
    for wrong in (torch.tensor([0, 3]), torch.tensor([-1]), torch.tensor([0.0]), torch.tensor([[1]])):
        with pytest.raises(InputError, match="it is damaged"):
            labels(wrong, 3)


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        (mapping, {"a": 1}, [1]),
        (tensor, torch.ones(1), [1.0]),
        (integer, 3, 3.0),
        (integer, 0, -1),
        (integer, 1, True),
        (integer, 2**62, 2**70),
        (integers, [1, 2], (1, 2)),
        (integers, [], [1, "2"]),
    ],
)
def test_a_part_of_another_kind_is_refused(check: Callable[[object], object], right: object, wrong: object) -> None:
    assert check(right) == right
    with pytest.raises(InputError, match=r"^a saved state has .* where .* belongs; it is damaged$"):
        check(wrong)
