"""history.csv, as it is written and as it is taken up again."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from autorecall.errors import WriteError
from autorecall.runs.history import History


def test_rows_are_in_the_file_at_once_and_a_number_that_is_none_is_an_empty_cell(tmp_path: Path) -> None:
    path = tmp_path / "history.csv"
    with History(path) as rows:
        for step, loss in ((1, 0.5), (2, math.nan)):
            rows.add({"step": step, "loss": loss})
            assert path.read_text() == rows.text
    assert (rows.text, rows.rows) == ("step,loss\n1,0.5\n2,\n", 2)


def test_a_history_goes_on_from_its_earlier_part_and_forgets_what_came_after(tmp_path: Path) -> None:
    """Columns may have a comma in their name."""
    first = History()
    assert (first.text, first.rows) == ("", 0)
    first.add({"step": 1, 'a, "b"': 2.0})
    (tmp_path / "history.csv").write_text(first.text + "2,9.0\n3,")
    with History(tmp_path / "history.csv", first.text) as second:
        assert second.rows == 1
        second.add({"step": 2, 'a, "b"': 3.0})
    assert (tmp_path / "history.csv").read_text() == second.text == 'step,"a, ""b"""\n1,2.0\n2,3.0\n'


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "history.csv"
    path.symlink_to("/dev/full")
    with (
        History(path) as rows,
        pytest.raises(WriteError, match=r"^cannot write .*history\.csv: No space left on device; check the folder"),
    ):
        rows.add({"step": 1})
