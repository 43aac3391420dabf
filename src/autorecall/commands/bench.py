"""`autorecall bench`: what recall costs on this machine."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..errors import ConfigError
from ..storage.files import make_folder, place_to_write, write_json
from .measure import Iterations, Report, Timing, measure
from .process import keep_freed_memory
from .words import call


def main(arguments: list[str]) -> None:
    """Parse, measure, report."""
    call(_bench, "autorecall bench", arguments)


def _bench(json: Path | None = None) -> None:
    """Measure what recall costs on this machine, as ratios within one run, in about four minutes.

    Iterations of naive SGD, literal ARM (all copies, the equations as written) and ARM take turns, with the paper's
    settings for MNIST and CIFAR10; then `observe` beside a loop in plain torch, what takes longest elsewhere, how ARM's
    cost grows with each of its sizes, and memory. CIFAR10 images are read where `autorecall run` would find them, and
    made up if there are none: the work is the same.
    Leave the machine otherwise idle.

    Args:
        json: Write all measurements to this file, and a picture of the growth curves next to it, ending in .png.
    """
    if json is not None:
        if json.is_dir() or json.suffix == ".png":
            raise ConfigError(f"--json is {json}; expected a file that does not end in .png, such as bench.json")
        make_folder(json.parent)
        place = place_to_write(json)
    keep_freed_memory()
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 160
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=1.0)
        report = measure(lambda what, share: bar.update(task, description=what, completed=share))
    _print(console, report)
    if json is not None:
        from .pictures import draw_growth

        write_json(place, report.as_json())
        draw_growth(json.with_suffix(".png"), report.growth_seconds)


def _print(console: Console, report: Report) -> None:
    table = Table("ms per iteration", "naive", "literal ARM", "ARM", "ARM over naive", "literal over ARM", "images")
    for name, measured in (("MNIST", report.mnist), ("CIFAR10", report.cifar10)):
        table.add_row(name, *_row(measured))
    console.print(table)
    table = Table("ms per step, MNIST", "observe", "plain torch", "observe over plain")
    for name, overhead in report.overheads.items():
        table.add_row(name, _milliseconds(overhead.observe), _milliseconds(overhead.bare), f"{overhead.ratio:.2f}")
    console.print(table)
    table = Table("also", "ms")
    for name, timing in report.others.items():
        table.add_row(name, _milliseconds(timing))
    console.print(table)
    for name, curve in report.growth_seconds.items():
        grown = Table(name, *map(str, curve))
        grown.add_row("ms", *(f"{1e3 * timing.seconds:.0f}" for timing in curve.values()))
        console.print(grown)
    for name, megabytes in report.peak_memory_mb.items():
        console.print(f"peak memory of an iteration, {name}: {megabytes:.0f} MB")
    if report.page_faults is not None:
        console.print(f"page faults of an iteration of ARM on CIFAR10: {report.page_faults:.0f}")
    console.print(f"medians and quartiles within one run, {report.threads} threads")


def _row(measured: Iterations) -> tuple[str, ...]:
    return (
        *map(_milliseconds, (measured.naive, measured.literal, measured.arm)),
        f"{measured.cost_over_naive:.1f}",
        f"{measured.speedup_over_literal:.1f}",
        "real" if measured.real_data else "made",
    )


def _milliseconds(timing: Timing) -> str:
    return f"{1e3 * timing.seconds:.1f} ({1e3 * timing.low:.1f}-{1e3 * timing.high:.1f})"
