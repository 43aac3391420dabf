"""The lines of the matrix: names where there is space, numbers where there is none."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from autorecall.commands.matrix import Matrix, task_label

PETS = [["cat", "dog"], ["owl"]]


def test_own_classes_head_their_columns() -> None:
    lines = Matrix("folder", PETS, 80).lines([[100.0, 0.0], [7.25, 50.0]])
    assert lines == [
        "accuracy in %  cat, dog    owl",
        "after task  1     100.0    0.0",
        "after task  2       7.2   50.0",
    ]


def test_digits_have_no_heading() -> None:
    lines = Matrix("mnist", [["0", "1"], ["2", "3"]], 80).lines([[100.0, 0.0], [7.25, 50.0]])
    assert lines == [
        "after task  1   accuracy on each task in %:  100.0    0.0",
        "after task  2   accuracy on each task in %:    7.2   50.0",
    ]


def test_results_of_earlier_versions_have_no_names() -> None:
    assert Matrix("folder", [], 80).lines([[5.0]]) == ["after task  1   accuracy on each task in %:    5.0"]


def test_many_tasks_are_shown_by_their_last_row() -> None:
    lines = Matrix("folder", [["x"]] * 11, 80).lines([[5.0] * 11] * 11)
    assert lines == ["after task 11   accuracy on each task in %:  " + "  ".join(["  5.0"] * 10) + "  …"]


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_names_are_shortened_until_they_fit_or_left_away(width: int) -> None:
    tasks = [["a long name of a class", "猫" * 20], ["e\u0301" * 30, "b"], ["x"]]
    lines = Matrix("npz", tasks, width).lines([[1.0, 2.0, 3.0]] * 3)
    named = lines[0].startswith("accuracy in %")
    assert named == (width > 40)
    if named:
        assert len({cell_len(line) for line in lines}) == 1
        assert cell_len(lines[0]) <= width


def test_names_with_escape_codes_are_shown_without_them() -> None:
    heading = Matrix("arrays", [["\x1b[2J", "line\nbreak"]], 80).heading()
    assert heading is not None
    assert heading.isprintable()


@pytest.mark.parametrize(
    ("most", "label"),
    [(24, "cat, dog, bird"), (14, "cat, dog, bird"), (13, "cat, dog +1"), (10, "cat +2"), (5, "c… +2")],
)
def test_a_label_says_how_many_more_there_are(most: int, label: str) -> None:
    assert task_label(["cat", "dog", "bird"], most) == label
    assert cell_len(label) <= most
