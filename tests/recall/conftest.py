"""The same tests with the C kernels and without them."""

from __future__ import annotations

import pytest


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the package had been installed where there is no compiler."""
    monkeypatch.setattr("autorecall.recall.kernels._kernels", dict)


@pytest.fixture(params=["as installed", "without kernels"])
def installation(request: pytest.FixtureRequest) -> None:
    """Both ways to install the package, one after the other."""
    if request.param == "without kernels":
        request.getfixturevalue("without_kernels")
