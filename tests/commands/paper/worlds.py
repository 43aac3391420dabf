"""Finished runs written by hand, with figures that can be checked by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from autorecall.commands.paper.study import Row
from autorecall.config import RunConfig
from autorecall.runs.names import run_folder
from autorecall.runs.result import MemoryCount, Point, Result, Seconds, as_json
from autorecall.storage.files import write_json
from autorecall.storage.formats import stamped
from autorecall.storage.schema import to_json

TASKS = 5


def write_run(
    out: Path, preset: str, config: RunConfig, accuracy: float, forgetting: float | None = 10.0, steps: int = 100
) -> Path:
    """A run that ended with this accuracy; its curve rises to it."""
    folder = run_folder(out, preset, config)
    folder.mkdir(parents=True)
    write_json(folder / "config.json", stamped({"preset": preset} | to_json(config)))
    curve = [Point(step, [accuracy * step / 100] * TASKS) for step in (0, 50, 100)]
    result = Result(
        preset,
        config.seed,
        config.split,
        accuracy,
        forgetting,
        [[accuracy] * TASKS] * TASKS,
        MemoryCount(7, 0.07, 1000, 0.004),
        steps,
        Seconds(1.0, 1.0),
        {},
        {},
        curve=curve,
    )
    write_json(folder / "result.json", as_json(result))
    names = ",".join(f"recalled_class_{number}" for number in range(10))
    shares = ["", *("0.1," * 9 + "0.1" for _ in range(99))]
    rows = "".join(f"{step},{row or ',' * 9}\n" for step, row in enumerate(shares, start=1))
    (folder / "history.csv").write_text(f"step,{names}\n{rows}")
    return folder


def write_rows(out: Path, rows: list[Row], accuracies: list[list[float]]) -> None:
    """Runs of several rows: for each, the accuracy of seeds 0, 1, …"""
    for row, values in zip(rows, accuracies, strict=True):
        for seed, accuracy in enumerate(values):
            write_run(out, row.preset, replace(row.config, seed=seed), accuracy)
