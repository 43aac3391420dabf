"""Tables in three formats."""

from __future__ import annotations

import csv
import io
import statistics

import pytest

from autorecall.commands.table import Cell, Figure, Table

TABLE = Table(
    "A & B",
    ("method", "M", "accuracy", "published"),
    [["Naive_SGD†", 1000, Figure(12.345, 1.25), "12 ± 1"], ["x | y", None, Figure(-3.0, marked=True), None]],
    ["100 % of λ3."],
)


def test_a_figure_is_mean_and_standard_deviation() -> None:
    values = [1.0, 2.0, 4.5]
    found = Figure.over(values)
    assert found is not None
    assert (found.value, found.spread) == (statistics.fmean(values), statistics.stdev(values))
    assert Figure.over([3.0]) == Figure(3.0)  # one run has no spread
    assert Figure.over([]) is None


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (Figure(12.345, 1.25), "12.3 ± 1.2"),
        (Figure(-0.04, 0.5, digits=3), "−0.040 ± 0.500"),
        (Figure(5.0, marked=True), "5.0*"),
        (Figure(-0.04, 0.5), "0.0 ± 0.5"),
        (Figure(0.04, change=True), "+0.0"),
    ],
)
def test_a_figure_is_printed_with_its_digits_and_mark(figure: Figure, text: str) -> None:
    assert str(figure) == text


def test_markdown_escapes_what_would_break_the_table() -> None:
    lines = TABLE.markdown().splitlines()
    assert lines[0] == r"A \& B"
    assert lines[2:] == [
        "| method | M | accuracy | published |",
        "|---|---:|---:|---:|",
        "| Naive_SGD† | 1,000 | 12.3 ± 1.2 | 12 ± 1 |",
        r"| x \| y |  | −3.0\* |  |",
        "",
        "100 % of λ3.",
        "",
        r"\* The mean lies outside the published mean ± spread.",
    ]


def test_columns_of_numbers_end_at_the_right_and_words_begin_at_the_left() -> None:
    rows: list[list[Cell]] = [["a", "26.4 ± 1.2", "yes", None], ["b", Figure(1.0), "CIFAR10: 3 of 4 gain", 2]]
    table = Table("T", ("row", "published", "words", "count"), rows)
    assert table.markdown().splitlines()[3] == "|---|---:|---|---:|"
    assert r"\begin{tabular}{lrlr}" in table.latex()


def test_latex_escapes_what_would_break_the_table() -> None:
    text = TABLE.latex()
    assert r"\caption{A \& B. 100 \% of $\lambda$3. * The mean lies outside" in text
    assert r"Naive\_SGD$\dagger$ & 1,000 & 12.3 $\pm$ 1.2 & 12 $\pm$ 1 \\" in text
    assert r"\begin{tabular}{lrrr}" in text
    assert text.count(r"\\") == 3


def test_csv_has_every_figure_in_full_and_its_spread_apart() -> None:
    header, first, second = csv.reader(io.StringIO(TABLE.csv()))
    assert header == ["method", "M", "accuracy", "accuracy spread", "published"]
    assert first == ["Naive_SGD†", "1000", "12.345", "1.25", "12 ± 1"]
    assert second == ["x | y", "", "-3.0", "", ""]
