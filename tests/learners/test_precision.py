"""Half precision on machines whose processors announce more than they allow."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from autorecall import ICaRL, Naive, precision
from autorecall.errors import InputError

from .worlds import CLASSES, any_method, batch, learner, mlp, needs


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    precision.works.cache_clear()
    yield
    precision.works.cache_clear()


def child(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(precision, "_command", lambda _: [sys.executable, "-c", code])


KILLED = "print('begun', flush=True); import os, signal; os.kill(os.getpid(), signal.SIGILL)"


@pytest.mark.parametrize("code", [KILLED, "print('begun', flush=True); raise RuntimeError"])
@any_method
def test_what_kills_a_child_is_refused(method: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    child(monkeypatch, code)
    x, y = batch(0)
    student = learner(method, mlp().bfloat16())
    student.network.forward = None  # type: ignore[assignment]  # never run
    with pytest.raises(InputError, match=r"^bfloat16 does not work on this machine.*use float32$"):
        student.observe(x.bfloat16(), y)


def test_a_network_of_half_precision_is_refused_whatever_the_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    child(monkeypatch, KILLED)
    with pytest.raises(InputError, match=r"^float16 does not work on this machine"):
        Naive(mlp().half()).observe(*batch(0))


@pytest.mark.parametrize("kind", [Naive, ICaRL])
def test_predictions_are_refused_as_well(kind: type[Naive | ICaRL], monkeypatch: pytest.MonkeyPatch) -> None:
    child(monkeypatch, KILLED)
    with pytest.raises(InputError, match=r"^float16 does not work on this machine"):
        kind(mlp().half()).predict(batch(0)[0].half())


def test_the_child_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.dtype] = []

    def command(dtype: torch.dtype) -> list[str]:
        asked.append(dtype)
        return [sys.executable, "-c", KILLED]

    monkeypatch.setattr(precision, "_command", command)
    assert not precision.works(torch.float16)
    assert not precision.works(torch.float16)
    assert precision.works(torch.float32)
    assert precision.works(torch.float64)
    assert asked == [torch.float16]


@pytest.mark.parametrize("executable", [None, "", "/nowhere/python", "/bin/false", "/bin/true", "\0"])
def test_without_an_interpreter_to_ask_nothing_is_refused(
    executable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    assert precision.works(torch.bfloat16)


@pytest.mark.parametrize(("said", "expected"), [("begun", False), ("", True)])
def test_a_child_that_never_ends_is_not_waited_for(said: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    child(monkeypatch, f"print({said!r}, flush=True); import time; time.sleep(60)")
    monkeypatch.setattr(precision, "SECONDS", 1)
    assert precision.works(torch.bfloat16) is expected


def test_the_child_itself() -> None:
    """It answers; if yes, a network of this kind learns."""
    needs(torch.bfloat16)
    student = Naive(mlp().bfloat16())
    x, y = batch(0)
    student.observe(x.bfloat16(), y)


@any_method
def test_layers_may_differ_in_precision(method: str) -> None:
    """The last layer is more precise than the rest, so logits are more precise than images."""

    class Precise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.last = nn.Linear(60, 8), nn.Linear(8, CLASSES).double()

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.last(self.body(x.flatten(1)).relu().double())
            return logits

    student = learner(method, Precise())
    for number in range(6):
        x, y = batch(number)
        numbers = student.observe(x.float(), y)
    assert all(map(math.isfinite, numbers.values()))
    assert bool(student.predict(x.float()).isfinite().all())
