"""Parts of a batch in threads of their own: results in order, torch as it was, errors raised once all are done."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch import Tensor

from autorecall.threads import Threads
from autorecall.torch_state import limited_threads

BATCH = torch.arange(6.0)  # in three parts


def test_each_part_has_a_thread_and_torch_one_in_each() -> None:
    meeting = threading.Barrier(3, timeout=10)

    def work(part: Tensor) -> Tensor:
        meeting.wait()
        return torch.tensor([[part[0], torch.get_num_threads(), torch.is_grad_enabled()]])

    with limited_threads(2), torch.no_grad():
        found = Threads().each(work, BATCH, 3)
        assert torch.get_num_threads() == 2
    assert torch.equal(found, torch.tensor([[0.0, 1, 0], [2, 1, 0], [4, 1, 0]]))


@pytest.mark.parametrize("failing", [0.0, 4.0])
def test_an_error_is_raised_when_no_part_is_at_work_any_more(failing: float) -> None:
    threads, done = Threads(), list[float]()

    def work(part: Tensor) -> Tensor:
        if float(part[0]) == failing:
            raise ValueError("on purpose")
        done.append(float(part[0]))
        return part

    with pytest.raises(ValueError, match="on purpose"):
        threads.each(work, BATCH, 3)
    assert sorted(done) == [number for number in (0.0, 2.0, 4.0) if number != failing]
    assert torch.equal(threads.each(lambda part: part + 1, BATCH, 3), torch.arange(1.0, 7.0))


def test_a_copy_has_threads_of_its_own() -> None:
    threads = Threads()
    names = [found.submit(threading.get_ident).result() for found in (threads, copy.deepcopy(threads), threads)]
    assert names[0] == names[2] != names[1]
