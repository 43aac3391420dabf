"""Everything that a report says about one row: its runs, and what they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...presets import PRESETS, SAME_ROW
from ...storage.schema import differences, values_of_fields
from ..row_formats import paper_figure
from ..rows import Row, Run
from .charts import byte_words
from .details import Budget, RunDetails, duration, run_details


@dataclass(frozen=True)
class Setting:
    """A field of a config, and what it is in the preset if that differs."""

    name: str
    value: str
    usual: str | None
    differs: bool


@dataclass(frozen=True)
class RowDetails:
    """The runs of a row, and what they share."""

    id: str
    preset: str
    changed: list[str]
    row: Row
    runs: list[RunDetails]
    settings: list[Setting]
    memory: list[tuple[str, str, str]]
    paper: dict[str, str | None]
    none: str
    """What to say where the paper has no figure."""
    kept: str
    time: str


def row_details(number: int, row: Row, roots: Sequence[Path], budget: Budget) -> RowDetails:
    """A row, with its runs in the order of their seeds."""
    runs = sorted(row.runs, key=lambda run: run.result.seed)
    return RowDetails(
        f"row-{number}",
        row.preset,
        row.changed_briefly,
        row,
        [run_details(run, roots, budget, place < budget.pictures) for place, run in enumerate(runs)],
        _settings(runs[0]),
        _memory(row),
        {"accuracy": paper_figure(row, "accuracy"), "forgetting": paper_figure(row, "forgetting")},
        "not in the paper" if row.in_presets and row.published is None else "–",
        byte_words(row.memory.bytes),
        duration(row.seconds),
    )


def _memory(row: Row) -> list[tuple[str, str, str]]:
    memory = row.memory
    parts = (
        ("images", memory.images, memory.image_mb),
        ("parameters", memory.parameters, memory.parameter_mb),
        ("statistics", memory.statistics, memory.statistic_mb),
    )
    lines = [(name, f"{count:,}", f"{round(1e6 * size):,}") for name, count, size in parts]
    return [*lines, ("all", "", f"{memory.bytes:,}")]


def _settings(run: Run) -> list[Setting]:
    """All settings but those that say how numbers are computed; what differs comes first."""
    usual = PRESETS[run.result.preset].config if run.result.preset in PRESETS else None
    changed = {} if usual is None else differences(run.config, usual)
    before = {} if usual is None else differences(usual, run.config)
    found = [
        Setting(name, _value(value), _old(before, name, changed), name in changed)
        for name, value in values_of_fields(run.config).items()
        if name not in SAME_ROW
    ]
    return sorted(found, key=lambda setting: not setting.differs)


def _old(before: dict[str, object], name: str, changed: dict[str, object]) -> str | None:
    return None if name not in changed else _value(before[name]) if name in before else "none"


def _value(value: object) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(_value, value)) or "none"
    return "none" if value is None else str(value)
