"""Ctrl-C, SIGTERM and a terminal that goes away: a run is saved, and the same command goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from torch import Tensor

from autorecall import Learner, cli

from .worlds import Said, Say, files, read

INTERRUPTED = "autorecall: interrupted at step 7 of 20; run the same command again to resume from step 7\n"


def signalled(monkeypatch: pytest.MonkeyPatch, step: int, *numbers: signal.Signals) -> None:
    """Signals that come during a step."""
    observe, steps = Learner.observe, iter(range(1, 10_000))

    def observing(self: Learner, x: Tensor, y: Tensor) -> dict[str, float]:
        if next(steps) == step:
            for number in numbers:
                os.kill(os.getpid(), number)
        return observe(self, x, y)

    monkeypatch.setattr(Learner, "observe", observing)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_the_run_and_the_same_command_goes_on(
    say: Say, place: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    assert say("run", "mnist/arm", "--out", "whole").code == 0
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patched:
        signalled(patched, 7, number)
        said = say("run", "mnist/arm")
    assert (said.code, said.err) == (code, INTERRUPTED)
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers
    folder = place / "runs" / "mnist" / "arm" / "seed-0"
    assert not (folder / "result.json").exists()

    said = say("run", "mnist/arm")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("resuming after step 7 of 20: runs/mnist/arm/seed-0\nafter task  2 ")
    whole = place / "whole" / "mnist" / "arm" / "seed-0"
    assert files(folder) == files(whole)
    assert read(folder / "result.json") == read(whole / "result.json")
    for name in ("history.csv", "curves.png", "recalled.png", "config.json"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_of_another_kind_changes_nothing(
    say: Say, monkeypatch: pytest.MonkeyPatch, second: signal.Signals
) -> None:
    with monkeypatch.context() as patched:
        signalled(patched, 7, signal.SIGTERM, second, second)
        said = say("run", "mnist/naive")
    assert (said.code, said.err) == (143, INTERRUPTED)


def test_a_second_interrupt_leaves_at_once(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    handler = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patched:
        signalled(patched, 7, signal.SIGINT, signal.SIGINT)
        assert cli.dispatch(["run", "mnist/naive", "--checkpoint-seconds", "0"]) == 130
    line = "autorecall: leaving at once; what was learned since the last checkpoint will be learned again\n"
    assert capfd.readouterr().err == line  # past Python's own stderr, which may be in use at that moment
    assert signal.getsignal(signal.SIGINT) is handler
    assert cli.dispatch(["run", "mnist/naive"]) == 0
    assert "resuming after step 6 of 20" in capfd.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_is_ignored_stays_so(say: Say, monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    found = signal.signal(number, signal.SIG_IGN)  # as nohup does
    try:
        with monkeypatch.context() as patched:
            signalled(patched, 7, number)
            assert say("run", "mnist/naive").code == 0
    finally:
        after = signal.signal(number, found)
    assert after is signal.SIG_IGN


def test_a_fresh_run_that_is_interrupted_says_how_to_go_on(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        signalled(patched, 7, signal.SIGINT)
        said = say("run", "mnist/naive", "--fresh")
    advice = "run the same command without --fresh to resume from step 7"
    assert said == Said(130, said.out, f"autorecall: interrupted at step 7 of 20; {advice}\n")
    assert say("run", "mnist/naive").out.startswith("resuming after step 7 of 20")


def test_a_run_in_another_thread_leaves_signals_alone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes, handlers = list[int](), set[object]()
    observe = Learner.observe

    def observing(self: Learner, x: Tensor, y: Tensor) -> dict[str, float]:
        handlers.add(signal.getsignal(signal.SIGINT))
        return observe(self, x, y)

    monkeypatch.setattr(Learner, "observe", observing)
    thread = threading.Thread(target=lambda: codes.append(cli.dispatch(["run", "mnist/naive", "--threads", "1"])))
    thread.start()
    thread.join()
    assert codes == [0]
    assert handlers == {signal.getsignal(signal.SIGINT)}


def test_signals_are_ignored_on_the_way_out() -> None:
    """By a process that is about to exit with the code of a signal."""
    code = """
import os, signal, sys
from autorecall import cli
cli.dispatch = lambda _: 143
class Late:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
late = Late()
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (143, "")
