"""A table, once: as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from .text import markdown as in_markdown
from .text import spreadsheet

_LATEX = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"±": r"$\pm$", "−": "$-$", "×": r"$\times$", "λ": r"$\lambda$", "†": r"$\dagger$", "⁶": "$^6$"},
}


@dataclass(frozen=True)
class Figure:
    """A number with its spread; None if there is none. `marked` ones are outside what the paper reports, a `change` is
    printed with its sign."""

    value: float
    spread: float | None = None
    marked: bool = False
    digits: int = 1
    change: bool = False

    @classmethod
    def over(cls, values: Sequence[float], digits: int = 1, change: bool = False) -> Figure | None:
        """Mean and standard deviation; None if there are no values."""
        if not values:
            return None
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), deviation, digits=digits, change=change)

    def __str__(self) -> str:
        plain = signed(self.value, self.digits)
        plain = plain if self.change else plain.removeprefix("+")
        spread = "" if self.spread is None else f" ± {self.spread:.{self.digits}f}"
        return plain + spread + "*" * self.marked


OUTSIDE = "* The mean lies outside the published mean ± spread."
Cell = str | int | Figure | None


@dataclass(frozen=True)
class Table:
    """Rows under a header; a cell that is None is empty. What marks mean is said below."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = field(default=())

    def _numeric(self) -> list[bool]:
        """Which columns hold nothing but numbers, and so end at the right; the first one names its row."""
        columns = list(zip(*self.rows, strict=True)) or [()] * len(self.header)
        return [False, *(all(map(_is_number, column)) for column in columns[1:])]

    def _notes(self) -> list[str]:
        marked = any(isinstance(cell, Figure) and cell.marked for row in self.rows for cell in row)
        return [*self.notes, *([OUTSIDE] if marked else [])]

    def markdown(self) -> str:
        """For the docs."""
        lines = [
            "| " + " | ".join(map(in_markdown, self.header)) + " |",
            "".join("|---:" if numeric else "|---" for numeric in self._numeric()) + "|",
            *("| " + " | ".join(in_markdown(_text(cell)) for cell in row) + " |" for row in self.rows),
        ]
        notes = "".join(f"\n{in_markdown(note)}\n" for note in self._notes())
        return f"{in_markdown(self.title)}\n\n" + "\n".join(lines) + "\n" + notes

    def latex(self) -> str:
        """For a paper, with booktabs."""
        lines = [
            "% needs \\usepackage{booktabs}",
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{_latex(' '.join([self.title + '.', *self._notes()]))}}}",
            f"\\begin{{tabular}}{{{''.join('r' if numeric else 'l' for numeric in self._numeric())}}}",
            "\\toprule",
            " & ".join(map(_latex, self.header)) + " \\\\",
            "\\midrule",
            *(" & ".join(_latex(_text(cell)) for cell in row) + " \\\\" for row in self.rows),
            "\\bottomrule",
            "\\end{tabular}",
            "\\end{table}",
        ]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """For a program: every figure in full, its spread in a column of its own."""
        wide = [any(isinstance(row[column], Figure) for row in self.rows) for column in range(len(self.header))]
        header: list[str] = []
        for name, has_spread in zip(self.header, wide, strict=True):
            header += [name, f"{name} spread"] if has_spread else [name]
        lines = io.StringIO()
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(header)
        for row in self.rows:
            cells: list[object] = []
            for cell, has_spread in zip(row, wide, strict=True):
                if isinstance(cell, Figure):
                    cells += [round(cell.value, 6), "" if cell.spread is None else round(cell.spread, 6)]
                else:
                    plain = str(cell) if isinstance(cell, int) else spreadsheet(_text(cell).replace("−", "-"))
                    cells += [plain, ""] if has_spread else [plain]
            writer.writerow(cells)
        return lines.getvalue()


def signed(value: float, digits: int = 1) -> str:
    """A difference, with its sign.

    >>> signed(-1.25), signed(0.5), signed(-0.04)
    ('−1.2', '+0.5', '+0.0')
    """
    return f"{round(value, digits) + 0.0:+.{digits}f}".replace("-", "−")


def _is_number(cell: Cell) -> bool:
    """Numbers in words count, too, such as those of the paper with their spread.

    >>> [_is_number(cell) for cell in (None, 3, "26.4 ± 1.2", "-", "−0.5*", "10 %", "CIFAR10", "0.1, [0.3]")]
    [True, True, True, True, True, True, False, False]
    """
    return not isinstance(cell, str) or re.fullmatch(r"[\d\s.,:%±+−*/†-]*", cell) is not None


def _text(cell: Cell) -> str:
    return "" if cell is None else f"{cell:,}" if isinstance(cell, int) else str(cell)


def _latex(text: str) -> str:
    return re.sub(r"[&%$#_{}\\~^±−×λ†⁶]", lambda found: _LATEX[found[0]], text)
