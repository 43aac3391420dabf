"""How far many runs are: one bar for all, with the time left, and one line for each that is being made."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from . import costs
from .crew import Progress
from .output import Bars
from .text import complain, printable
from .worker import Job

QUIET = 60.0  # seconds without a word in a log


class Pace:
    """How much of all runs is done, and how long the rest takes at the pace since the first word about any of them."""

    def __init__(self, weights: Mapping[str, float], clock: Callable[[], float] = time.monotonic) -> None:
        """`weights` are about proportional to the time that runs take."""
        self._weights, self._clock = weights, clock
        self._first: dict[str, float] = {}  # shares done when a run was first heard of, maybe by an earlier process
        self._now: dict[str, float] = {}
        self._ended: set[str] = set()
        self._began = 0.0

    def note(self, run: str, step: int, steps: int, ended: bool) -> None:
        """How far a run is; one that failed has ended, too."""
        if steps:
            self._began = self._began if self._first else self._clock()
            self._now[run] = step / steps
            self._first.setdefault(run, step / steps)
        if ended:
            self._ended.add(run)

    @property
    def share(self) -> float:
        """How much is done, by whomever."""
        done = sum(weight * self._done(run) for run, weight in self._weights.items())
        return done / sum(self._weights.values())

    def seconds_left(self) -> float | None:
        """None if nothing has been done yet that could be measured."""
        left = sum(weight * (1 - self._done(run)) for run, weight in self._weights.items())
        made = sum(self._weights[run] * (share - self._first[run]) for run, share in self._now.items())
        return left / made * (self._clock() - self._began) if made > 0 else None

    def _done(self, run: str) -> float:
        return 1.0 if run in self._ended else self._now.get(run, 0.0)


class TimeLeft(TimeRemainingColumn):
    """That of a task with a pace is by its pace: Rich would take what was done before an interruption for speed."""

    def render(self, task: Task) -> Text:
        """Hours, minutes and seconds."""
        pace: Pace | None = task.fields.get("pace")
        if pace is None:
            return super().render(task)
        seconds = pace.seconds_left()
        said = "-:--:--" if seconds is None else str(timedelta(seconds=round(seconds)))
        return Text(said, style="progress.remaining")


class Display:
    """Told of every change by a crew; in a log instead of a terminal, it says now and then how far all runs are."""

    def __init__(self, console: Console, jobs: Sequence[Job], clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        weights = {os.path.relpath(job.folder): costs.seconds(job.preset, job.config) for job in jobs}
        self._runs, self._ended = len(weights), 0
        self._pace = Pace(weights, clock)
        self._clock, self._said, self._tenths = clock, clock(), 0
        self._lines: dict[str, TaskID] = {}
        parents = [str(Path(folder).parent) for folder in weights]
        self._common = os.path.commonpath(parents) if len(set(parents)) > 1 else str(Path(parents[0]).parent)
        names = Column(no_wrap=True, max_width=console.width // 2)  # long ones would leave no room for the time left
        self._bars = Bars(
            TextColumn("{task.description}", markup=False, table_column=names),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeLeft(),
            console=console,
            transient=True,
            speed_estimate_period=3600,
        )
        self._all = self._bars.add_task(f"0 of {self._runs} runs", total=1.0, pace=self._pace)

    def told(self, made: Progress, sentence: str) -> None:
        """Something happened to a run."""
        if sentence:
            complain(sentence)
        folder = os.path.relpath(made.job.folder)
        ended = made.state in ("finished", "failed")
        self._pace.note(folder, made.step, made.steps, ended)
        name = printable(os.path.relpath(folder, self._common))
        if made.state == "running" and folder not in self._lines:
            self._lines[folder] = self._bars.add_task(name, total=None)
        if folder in self._lines:
            self._bars.update(self._lines[folder], total=made.steps or None, completed=made.step)
        if ended:
            self._ended += 1
            if folder in self._lines:
                self._bars.remove_task(self._lines.pop(folder))
            self._say(f"{made.state}: {name}{': ' * bool(made.why)}{printable(made.why)}")
        self._bars.update(self._all, completed=self._pace.share, description=f"{self._ended} of {self._runs} runs")
        if not self._console.is_terminal:
            self._log()

    def _log(self) -> None:
        """Of use in a log: rarely, and nothing that was known when this process began."""
        share, left = self._pace.share, self._pace.seconds_left()
        tenths = int(10 * share)
        if left is None:
            self._tenths = tenths
        elif tenths > self._tenths and share < 1 and self._clock() - self._said >= QUIET:
            self._tenths = tenths
            self._say(f"{100 * share:.0f} % done, about {costs.duration(left)} left")

    def _say(self, line: str) -> None:
        self._said = self._clock()
        self._console.print(line, soft_wrap=True)

    def __enter__(self) -> Display:
        self._bars.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.__exit__(None, None, None)
