"""Kernels of other sources are not called: their arguments may mean something else."""

from __future__ import annotations

import pytest
import torch

from autorecall.recall import kernels


@pytest.mark.skipif(not kernels.can_call(torch.zeros(1)), reason="installed without compiled kernels")
def test_kernels_of_another_version_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels._library.__wrapped__() is not None
    assert kernels._kernels.__wrapped__()
    monkeypatch.setattr(kernels, "VERSION", kernels.VERSION + 1)
    with pytest.warns(UserWarning, match="compiled kernels are of another version .* install autorecall again"):
        assert kernels._library.__wrapped__() is None
    monkeypatch.setattr(kernels, "_library", lambda: None)
    assert kernels._kernels.__wrapped__() == {}
