"""Every test runs on one core, starts from the same global random state, and draws the same examples."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

import hypothesis
import pytest
import torch

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
if WORKER and CORES:
    # Processes of pytest that use all cores wait for each other's threads: the suite took twice the time.
    os.sched_setaffinity(0, {CORES[int(WORKER.removeprefix("gw")) % len(CORES)]})

# A shell that starts pytest in the background has it ignore Ctrl-C, which tests send to themselves and to children.
signal.signal(signal.SIGINT, signal.default_int_handler)

LONG = "AUTORECALL_FUZZ" in os.environ  # set by scripts/fuzzing.py: other examples every time, and many more
hypothesis.settings.register_profile(
    "fuzz", derandomize=not LONG, deadline=None, max_examples=1000 if LONG else 20, database=None
)
hypothesis.settings.load_profile("fuzz")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    gc.freeze()  # what was imported stays: searches for what a test has left over need not look at it


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """No test loses power. The order of syncs is tested in test_files.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: os.fstat(file) and None)
        yield


@pytest.fixture
def all_cores() -> Iterator[None]:
    """For a test of several threads or processes."""
    found = os.sched_getaffinity(0) if CORES else set()
    if CORES:
        os.sched_setaffinity(0, CORES)
    yield
    if CORES:
        os.sched_setaffinity(0, found)


@pytest.fixture(autouse=True)
def same_start() -> None:
    # torch.manual_seed would also note the whole stack, for GPUs that are yet to come, before every test.
    torch.default_generator.manual_seed(0)


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the package had been installed where there is no compiler."""
    monkeypatch.setattr("autorecall.recall.kernels._kernels", dict)


@pytest.fixture(params=["as installed", "without kernels"])
def installation(request: pytest.FixtureRequest) -> None:
    """Both ways to install the package, one after the other."""
    if request.param == "without kernels":
        request.getfixturevalue("without_kernels")
