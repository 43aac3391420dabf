from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from autorecall import cli
from autorecall.commands import pictures
from autorecall.data import Dataset, Split, load, mnist
from autorecall.runs.folder import CURVES
from autorecall.runs.result import Result
from autorecall.storage.files import write_bytes

from .worlds import Said, Say


@pytest.fixture(scope="session")
def few_digits() -> Dataset:
    """The embedded digits, cut to the first 20 training and 10 other images of each class."""
    whole = load("mnist")

    def first(split: Split, each: int) -> Split:
        kept = np.sort(np.concatenate([np.flatnonzero(split.labels == label)[:each] for label in range(10)]))
        return Split(split.inputs[kept], split.labels[kept])

    return dataclasses.replace(
        whole, train=first(whole.train, 20), val=first(whole.val, 10), test=first(whole.test, 10)
    )


def quick_curves(folder: Path, result: Result) -> None:
    """A file in place of the picture, which would take longer than the run; test_pictures.py draws it."""
    write_bytes(folder / CURVES, result.preset.encode())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_digits: Dataset) -> Path:
    """An empty folder to work in, few digits, and no data or cache of this machine."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.delenv("AUTORECALL_DATA", raising=False)
    monkeypatch.setenv("AUTORECALL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(mnist, "load_embedded", lambda: few_digits)
    monkeypatch.setattr(pictures, "draw_curves", quick_curves)
    return work


@pytest.fixture
def say(place: Path, capsys: pytest.CaptureFixture[str]) -> Say:
    """Type a command line."""

    def typed(*words: str) -> Said:
        try:
            code = cli.dispatch(words)
        except SystemExit as end:  # how tyro ends after --help or a word it does not know
            code = int(end.code or 0)
        printed = capsys.readouterr()
        return Said(code, printed.out, printed.err)

    return typed
