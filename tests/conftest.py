"""Every test runs on one thread, starts from the same global random state, and draws the same examples."""

from __future__ import annotations

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("same", derandomize=True, deadline=None, max_examples=30, database=None)
hypothesis.settings.load_profile("same")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def same_start() -> None:
    torch.manual_seed(0)


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the package had been installed where there is no compiler."""
    monkeypatch.setattr("autorecall.recall.kernels._kernels", dict)


@pytest.fixture(params=["as installed", "without kernels"])
def installation(request: pytest.FixtureRequest) -> None:
    """Both ways to install the package, one after the other."""
    if request.param == "without kernels":
        request.getfixturevalue("without_kernels")
