"""How far many runs are, with an honest time left."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from autorecall.commands.crew import Progress
from autorecall.commands.display import Display, Pace
from autorecall.commands.matrix import Matrix
from autorecall.commands.output import Bars
from autorecall.commands.run import Bar
from autorecall.commands.worker import Job
from autorecall.presets import PRESETS

HOUR = 3600.0


class Clock:
    """Goes only when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_what_was_done_before_an_interruption_is_no_speed(clock: Clock) -> None:
    """Two runs of ten hours, resumed in the middle: five hours each, at the same time."""
    pace = Pace({"a": 10 * HOUR, "b": 10 * HOUR}, clock)
    assert pace.seconds_left() is None
    clock.now += 30  # loading data
    for run in "ab":
        pace.note(run, 300, 600, False)
    assert pace.share == 0.5
    assert pace.seconds_left() is None
    clock.now += 60
    for run in "ab":
        pace.note(run, 301, 600, False)
    left = pace.seconds_left()
    assert left is not None
    assert left / HOUR == pytest.approx(5, rel=0.01)


def test_runs_that_have_not_begun_count_by_their_weight(clock: Clock) -> None:
    pace = Pace({"short": HOUR, "long": 3 * HOUR}, clock)
    pace.note("short", 0, 100, False)
    clock.now += HOUR
    pace.note("short", 100, 100, True)
    assert (pace.share, pace.seconds_left()) == (0.25, 3 * HOUR)
    clock.now += HOUR
    pace.note("long", 50, 100, False)  # resumed, an hour later: the pace is half of that
    assert (pace.share, pace.seconds_left()) == (0.625, 3 * HOUR)
    pace.note("long", 100, 100, True)
    assert (pace.share, pace.seconds_left()) == (1, 0)


def test_a_run_that_failed_has_nothing_left_and_was_not_fast(clock: Clock) -> None:
    pace = Pace({"good": HOUR, "bad": HOUR, "later": HOUR, "gone": HOUR}, clock)
    for run in ("good", "bad"):
        pace.note(run, 0, 100, False)
    clock.now += 60
    pace.note("good", 10, 100, False)
    pace.note("bad", 10, 100, True)
    pace.note("gone", 0, 0, True)  # failed before its first step
    assert pace.share == pytest.approx(2.1 / 4)
    assert pace.seconds_left() == pytest.approx(60 * 1.9 / 0.2)


def test_a_run_that_starts_over_is_no_speed_either(clock: Clock) -> None:
    """Its checkpoint was damaged: it has to do more than it had to do."""
    pace = Pace({"a": HOUR}, clock)
    pace.note("a", 50, 100, False)
    clock.now += 60
    pace.note("a", 40, 100, False)
    assert pace.seconds_left() is None


def resumed(console: Console, folder: Path, clock: Clock) -> tuple[Display, list[Progress]]:
    """A display of two runs that another process has made half of."""
    jobs = [Job("mnist/arm", PRESETS["mnist/arm"].config, str(folder / f"seed-{seed}")) for seed in (0, 1)]
    shown, made = Display(console, jobs, clock), [Progress(job, 300, 600, "running") for job in jobs]
    for each in made:
        shown.told(each, "")
    return shown, made


@pytest.mark.parametrize(("name", "columns"), [("arm", 60), ("arm" + "+recalled_images=101" * 5, 80)])
def test_the_bar_of_all_runs_says_so(tmp_path: Path, clock: Clock, name: str, columns: int) -> None:
    console = Console(file=io.StringIO(), width=columns, force_terminal=True)
    shown, made = resumed(console, tmp_path / name, clock)
    clock.now += 60
    for each in made:
        each.step += 1
        shown.told(each, "")
    with console.capture() as captured:
        console.print(shown._bars.get_renderable())
    line = captured.get().splitlines()[0]
    assert "0 of 2 runs" in line
    assert "50 %" in line
    assert "4:59:00" in line


def widths(console: Console, bars: Bars) -> set[int]:
    with console.capture() as captured:
        console.print(bars.get_renderable())
    return {cell_len(Text.from_ansi(line).plain) for line in captured.get().splitlines()}


@pytest.mark.parametrize("columns", [200, 80, 40, 3])
def test_bars_leave_room_for_an_echoed_interrupt(tmp_path: Path, clock: Clock, columns: int) -> None:
    """Or the line wraps, and a part of it stays above what is printed next."""
    console = Console(file=io.StringIO(), width=columns, force_terminal=True)
    shown, _ = resumed(console, tmp_path / ("long" * 40), clock)
    assert max(widths(console, shown._bars)) <= max(1, columns - 4)
    bar = Bar(console, "long" * 40, tmp_path, [], Matrix("mnist", [], columns), False)
    bar.step(3, 600, 1, {"loss": 2.0})
    assert max(widths(console, bar._progress)) <= max(1, columns - 4)


@pytest.mark.parametrize("terminal", [False, True])
def test_a_log_says_now_and_then_how_far_it_is(tmp_path: Path, clock: Clock, terminal: bool) -> None:
    """On from the middle: what was done before is no news."""
    file = io.StringIO()
    shown, made = resumed(Console(file=file, force_terminal=terminal, highlight=False), tmp_path / "arm", clock)
    for step in range(301, 601):
        clock.now += 30  # two and a half hours in all
        for each in made:
            each.step = step
            shown.told(each, "")
    for each in made:
        each.state = "finished"
        shown.told(each, "")
    lines = [f"{done} % done, about {left} left" for done, left in ((60, "2.0 h"), (70, "1.5 h"), (80, "1.0 h"))]
    lines = [] if terminal else [*lines, "90 % done, about 30 min left"]
    assert file.getvalue().splitlines() == [*lines, "finished: arm/seed-0", "finished: arm/seed-1"]


def test_a_log_of_short_runs_has_only_their_ends(tmp_path: Path, clock: Clock) -> None:
    file = io.StringIO()
    shown, made = resumed(Console(file=file), tmp_path / "arm", clock)
    for each in made:
        for each.step in range(301, 601):
            clock.now += 0.1
            shown.told(each, "")
        each.state = "finished"
        shown.told(each, "")
    assert file.getvalue().splitlines() == ["finished: arm/seed-0", "finished: arm/seed-1"]
