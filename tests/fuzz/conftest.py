from __future__ import annotations

from pathlib import Path

import pytest

from autorecall.data import Dataset

from .worlds import tiny


@pytest.fixture(scope="session")
def data() -> Dataset:
    return tiny()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Dataset) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("autorecall.data.load", lambda *_, **__: data)
    return tmp_path
