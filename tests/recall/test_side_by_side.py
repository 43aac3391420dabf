"""Two pieces of work at once: where they run, what they give, and what happens to errors."""

from __future__ import annotations

import copy
import os
import signal
import threading
import time
from functools import partial

import pytest
import torch

from autorecall.recall.side_by_side import SideBySide
from autorecall.torch_state import limited_threads


def pair(threads: int) -> SideBySide:
    made = SideBySide()
    made.threads = threads
    return made


@pytest.mark.parametrize(
    ("threads", "torch_threads", "at_once"),
    [(1, 1, False), (2, 1, True), (3, 1, True), (2, 2, False), (3, 2, False), (4, 2, True)],
)
def test_two_pieces_run_at_once_where_each_can_have_torchs_threads(
    threads: int, torch_threads: int, at_once: bool
) -> None:
    with limited_threads(torch_threads):
        here, there = pair(threads).both(threading.get_ident, threading.get_ident)
    assert here == threading.get_ident()
    assert (there != here) == at_once


def test_pieces_at_once_can_wait_for_each_other() -> None:
    meeting = threading.Barrier(2, timeout=10)
    assert sorted(pair(2).both(meeting.wait, meeting.wait)) == [0, 1]


@pytest.mark.parametrize("threads", [1, 2])
def test_results_come_in_the_order_of_the_pieces(threads: int) -> None:
    def slow() -> str:
        time.sleep(0.02)
        return "slow"

    assert pair(threads).both(slow, lambda: "quick") == ("slow", "quick")
    assert pair(threads).both(lambda: "quick", slow) == ("quick", "slow")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("failing", [0, 1])
def test_error_of_either_piece_is_raised_and_the_next_two_pieces_run(threads: int, failing: int) -> None:
    def piece(number: int) -> int:
        if number == failing:
            raise ValueError("on purpose")
        return number

    two = pair(threads)
    with pytest.raises(ValueError, match="on purpose"):
        two.both(partial(piece, 0), partial(piece, 1))
    assert two.both(lambda: 1, lambda: 2) == (1, 2)


def test_an_error_waits_for_the_other_piece() -> None:
    """Or it would go on with a network that the caller believes to be left alone."""
    done = threading.Event()

    def slow() -> None:
        time.sleep(0.1)
        done.set()

    def fail() -> None:
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        pair(2).both(fail, slow)
    assert done.is_set()


def test_the_other_piece_has_as_many_torch_threads_as_this_one() -> None:
    two = pair(4)
    for threads in (1, 2, 1):
        with limited_threads(threads):
            assert two.both(torch.get_num_threads, torch.get_num_threads) == (threads, threads)


def test_a_learner_can_be_copied_while_it_has_a_thread() -> None:
    two = pair(2)
    two.both(int, int)
    other = copy.deepcopy(two)
    other.threads = 2
    assert other.both(lambda: 1, lambda: 2) == (1, 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_has_a_thread_of_its_own() -> None:
    two = pair(2)
    two.both(int, int)
    child = os.fork()
    if child == 0:  # without a thread it would wait forever
        signal.alarm(30)
        os._exit(7 if two.both(lambda: 3, lambda: 4) == (3, 4) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert two.both(lambda: 1, lambda: 2) == (1, 2)
