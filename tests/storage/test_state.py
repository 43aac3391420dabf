"""Parts of saved states: made fit for a file, and checked when they come back."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

from autorecall.errors import InputError
from autorecall.storage.state import integer, integers, mapping, savable, tensor, with_number_keys


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
    restored = with_number_keys(kept)
    assert restored["state"] == state["state"]
    torch.optim.Adam([weight]).load_state_dict(restored)


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        (mapping, {"a": 1}, [1]),
        (tensor, torch.ones(1), [1.0]),
        (integer, 3, 3.0),
        (integers, [1, 2], (1, 2)),
        (integers, [], [1, "2"]),
    ],
)
def test_a_part_of_another_kind_is_refused(check: Callable[[object], object], right: object, wrong: object) -> None:
    assert check(right) == right
    with pytest.raises(InputError, match=r"^a saved state has .* where .* belongs; it is damaged$"):
        check(wrong)
