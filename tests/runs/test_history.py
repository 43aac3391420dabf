"""history.csv, as it is written and as it is taken up again."""

from __future__ import annotations

import errno
import math
import os
import tracemalloc
from pathlib import Path

import pytest

from autorecall.errors import InputError, UnreadableError, WriteError
from autorecall.runs.history import END, Extent, History


def unexpected(sentence: str) -> None:
    raise AssertionError(sentence)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.csv"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return tmp_path / "copy.csv"


def test_rows_are_in_the_file_at_once_and_a_number_that_is_none_is_an_empty_cell(path: Path) -> None:
    with History(path) as rows:
        for step, loss, text in ((1, 0.5, "step,loss\n1,0.5\n"), (2, math.nan, "step,loss\n1,0.5\n2,\n")):
            rows.add({"step": step, "loss": loss})
            assert path.read_text() == text
        rows.finish(unexpected)


def test_a_history_goes_on_from_its_earlier_part_and_forgets_what_came_after(path: Path, copy: Path) -> None:
    """Columns may have a comma in their name."""
    with History(path, copy) as first:
        first.add({"step": 1, 'a, "b"': 2.0})
        extent = first.saved()
        first.add({"step": 2, 'a, "b"': 9.0})
    assert copy.read_text() == 'step,"a, ""b"""\n1,2.0\n'
    for _ in range(2):
        with History.resumed(path, copy, extent, unexpected) as second:
            second.add({"step": 2, 'a, "b"': 3.0})
            assert second.saved() == Extent.of(path.read_bytes())
            second.finish(unexpected)
        assert path.read_text() == copy.read_text() == 'step,"a, ""b"""\n1,2.0\n2,3.0\n'


@pytest.mark.parametrize("changed", ["path", "copy"])
def test_a_long_history_that_was_changed_near_its_end_is_restored(path: Path, copy: Path, changed: str) -> None:
    with History(path, copy) as rows:
        for step in range(10_000):
            rows.add({"step": step, "loss": 1 / 3})
        extent = rows.saved()
    content = path.read_bytes()
    assert len(content) > 3 * END
    said: list[str] = []
    damaged = path if changed == "path" else copy
    damaged.write_bytes(content[: -END // 2] + b"?" + content[-END // 2 + 1 :])
    with History.resumed(path, copy, extent, said.append) as rows:
        rows.finish(unexpected)
    assert path.read_bytes() == copy.read_bytes() == content
    assert len(said) == (changed == "path")


def test_a_change_far_from_the_end_is_noticed_when_the_run_ends(path: Path, copy: Path) -> None:
    """Resuming does not read what could take long."""
    with History(path, copy) as rows:
        for step in range(10_000):
            rows.add({"step": step, "loss": 1 / 3})
        extent = rows.saved()
    content = path.read_bytes()
    path.write_bytes(b"?" + content[1:])
    said: list[str] = []
    with History.resumed(path, copy, extent, unexpected) as rows:
        rows.finish(said.append)
    assert said == [f"{path} was changed by something else during the run, so not all of its rows are the run's"]


def test_numbers_of_other_names_are_refused(path: Path) -> None:
    with History(path) as rows:
        rows.add({"step": 1, "loss": 0.5})
        with pytest.raises(InputError, match=r"^step 2 has the numbers step, lost and earlier ones had step, loss; "):
            rows.add({"step": 2, "lost": 0.5})
    assert path.read_text() == "step,loss\n1,0.5\n"


def test_rows_take_no_memory(path: Path, copy: Path) -> None:
    tracemalloc.start()
    try:
        with History(path, copy) as rows:
            for step in range(1000):
                rows.add({"step": step})
            first = tracemalloc.get_traced_memory()[0]
            for step in range(1000, 20_000):
                rows.add({"step": step})
            assert tracemalloc.get_traced_memory()[0] - first < 5000  # of 100 kB of rows
            small = len(str(rows.saved()))
    finally:
        tracemalloc.stop()
    assert small < 300


def test_one_that_cannot_be_read_this_time_is_not_taken_for_a_damaged_one(
    path: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with History(path, copy) as rows:
        rows.add({"step": 1})
        extent = rows.saved()

    def failing(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", failing)
    with pytest.raises(UnreadableError, match=r"^cannot read .*history\.csv: Too many open files"):
        History.resumed(path, copy, extent, unexpected)
    assert path.read_bytes() == copy.read_bytes() == b"step\n1\n"


def test_a_link_is_not_written_through(tmp_path: Path, path: Path) -> None:
    (tmp_path / "precious").write_text("old")
    path.symlink_to(tmp_path / "precious")
    with pytest.raises(WriteError, match=r"^cannot write .*history\.csv: "):
        History(path)
    assert (tmp_path / "precious").read_text() == "old"
