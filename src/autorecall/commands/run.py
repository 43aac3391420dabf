"""`autorecall run`: one preset, any of its fields changed, as one run folder."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TextIO, cast

import tyro
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor

from .. import data
from ..ascent import cores
from ..config import RunConfig, from_json
from ..errors import ConfigError, DataError, InterruptedRunError
from ..experiment import Observer, Result, run
from ..files import read_json
from ..learners import Recollection
from ..presets import DEFAULT, PRESETS, changes, preset
from ..run_folder import finished_before, tidy
from .signals import watched
from .text import printable


@dataclass(frozen=True)
class Arguments:
    """Train one learner on one stream, and write what it did to OUT/<dataset>/<method>/seed-<N>.

    PRESET is a row of the paper's tables, as `autorecall list` prints them. Every option below changes one field of it;
    which options there are depends on the preset, so `autorecall run PRESET --help` shows those of its own learner.

    The folder receives config.json (run it again with --config), history.csv (a row a step), result.json, and for
    learners that recall a picture, recalled.png. A run that was interrupted goes on when the same command is given.
    """

    preset: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PRESET")]
    """The row to run."""

    run: Annotated[RunConfig, tyro.conf.arg(name="")]

    out: Path = Path("runs")
    """Where run folders go."""

    data: Path | None = None
    """Where datasets lie, or with --dataset folder your own images; none: AUTORECALL_DATA, a cache, or a download."""

    config: Path | None = None
    """Run the config.json of an earlier run again, instead of a preset."""

    fresh: bool = False
    """Start over, moving an earlier run of the same name aside."""


def main(arguments: list[str]) -> None:
    """Parse, run, report."""
    chosen = parse(arguments)
    config = chosen.run
    folder = run_folder(chosen.out, chosen.preset, config)
    console = Console(highlight=False, file=cast(TextIO, _Quiet(sys.stdout)))
    earlier = None if chosen.fresh else _finished_before(chosen, folder)
    if earlier is not None:
        tidy(folder)
        console.print(f"finished before: {escape(str(folder))}; --fresh runs it again")
        _print_result(console, config, earlier, folder)
        return
    dataset = _load(chosen)
    with watched() as stop, _Bar(console, f"{chosen.preset} seed {config.seed}", folder, dataset.classes) as observer:
        try:
            result = run(chosen.preset, config, dataset, folder, observer, chosen.fresh, stop)
        except InterruptedRunError as error:
            error.exit_code = stop.exit_code
            raise
    _print_result(console, config, result, folder)


def _load(chosen: Arguments, may_download: bool = True) -> data.Dataset:
    # mnist comes with the package: --data is for the others, and may be given all the same.
    place = None if chosen.run.dataset == "mnist" else chosen.data
    return data.load(chosen.run.dataset, place, chosen.run.image_size, progress=True, may_download=may_download)


def _finished_before(chosen: Arguments, folder: Path) -> Result | None:
    """The result of a finished run on the same data; where those were not named and are gone, its word is taken."""
    config, threads = chosen.run, chosen.run.threads or cores()
    result = finished_before(folder, chosen.preset, config, threads)
    if result is None or not result.data or config.dataset == "mnist":
        return result
    try:
        fingerprint = _load(chosen, may_download=False).fingerprint()
    except DataError:
        if chosen.data is not None:
            raise
        return result
    return finished_before(folder, chosen.preset, config, threads, fingerprint)


def parse(arguments: Sequence[str]) -> Arguments:
    """The arguments, with the preset or config that is named in them as defaults."""
    file = _option(arguments, "--config")
    named = arguments[0] if arguments and not arguments[0].startswith("-") else None
    if file is not None and named is not None:
        raise ConfigError(f"both the preset {named!r} and --config are given; expected one of them")
    if file is None:
        name = named or DEFAULT
        parsed = _parse(arguments, name, preset(name).config)
        # A preset behind options is known only now: once more, with its own settings as defaults.
        return parsed if parsed.preset == name else _parse(arguments, parsed.preset, preset(parsed.preset).config)
    values = dict(read_json(Path(file)))
    stored = values.pop("preset", None)
    if not isinstance(stored, str) or not re.fullmatch("[a-z0-9-]+/[a-z0-9-]+", stored):
        raise ConfigError(f"{file} has the preset {stored!r:.80}; expected a name such as {DEFAULT}")
    parsed = _parse(arguments, stored, from_json(values))
    if parsed.preset != stored:
        raise ConfigError(f"both the preset {parsed.preset!r} and --config are given; expected one of them")
    return parsed


def _parse(arguments: Sequence[str], name: str, config: RunConfig) -> Arguments:
    default = Arguments(name, config)
    return tyro.cli(
        Arguments, prog="autorecall run", args=arguments, default=default, config=(tyro.conf.AvoidSubcommands,)
    )


def run_folder(out: Path, name: str, config: RunConfig) -> Path:
    """OUT/<dataset>/<method>/seed-<N>."""
    return out / config.dataset / name.split("/")[1] / f"seed-{config.seed}"


def _option(arguments: Sequence[str], name: str) -> str | None:
    for index, word in enumerate(arguments):
        if word == name and index + 1 < len(arguments):
            return arguments[index + 1]
        if word.startswith(f"{name}="):
            return word.removeprefix(f"{name}=")
    return None


class _Quiet:
    """A file that falls silent when it can no longer be written to: a run need not end because nobody listens."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._broken = file, False

    def write(self, text: str) -> int:
        """Write, as long as that works."""
        if not self._broken:
            try:
                return self._file.write(text)
            except OSError as error:
                self._fall_silent(error)
        return len(text)

    def flush(self) -> None:
        """Flush, as long as that works."""
        if not self._broken:
            try:
                self._file.flush()
            except OSError as error:
                self._fall_silent(error)

    def _fall_silent(self, error: OSError) -> None:
        self._broken = True
        if not isinstance(error, BrokenPipeError):  # a reader who goes away knows
            _warn(f"cannot print ({error.strerror}); the run goes on without")

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


class _Bar(Observer):
    """A progress bar with the time left, a line a task, and the picture at the end."""

    def __init__(self, console: Console, title: str, folder: Path, classes: Sequence[str]) -> None:
        self._console, self._title, self._folder, self._classes = console, title, folder, classes
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task: TaskID | None = None

    def resumed(self, step: int, steps: int) -> None:
        """Say where the run goes on."""
        self._console.print(f"going on after step {step} of {steps}: {escape(str(self._folder))}", soft_wrap=True)

    def warned(self, sentence: str) -> None:
        """Pass it on."""
        _warn(sentence)

    def step(self, step: int, steps: int, task: int, numbers: Mapping[str, float]) -> None:
        """Advance the bar."""
        if self._task is None:
            self._task = self._progress.add_task(self._title, total=steps, loss="")
        loss = f"loss {numbers['loss']:.2f}" if "loss" in numbers else ""
        self._progress.update(self._task, completed=step, description=f"{self._title} task {task}", loss=loss)

    def evaluated(self, task: int, accuracies: list[float]) -> None:
        """Print how well each task is known."""
        shown = "  ".join(f"{a:5.1f}" for a in accuracies[:10]) + ("  …" if len(accuracies) > 10 else "")
        self._console.print(f"after task {task:2}   accuracy on each task in %:  {shown}")

    def recalled(self, x: Tensor, recollection: Recollection) -> None:
        """Draw the last recalled batch."""
        from ..pictures import draw_recalled

        draw_recalled(self._folder / "recalled.png", x, recollection, self._classes)

    def __enter__(self) -> _Bar:
        self._progress.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.__exit__(None, None, None)


def _warn(sentence: str) -> None:
    with suppress(OSError):
        print("autorecall: " + printable(sentence), file=sys.stderr)


def _print_result(console: Console, config: RunConfig, result: Result, folder: Path) -> None:
    """Accuracy, forgetting, the matrix, the memory, and where everything lies."""
    usual = PRESETS.get(result.preset)
    published = usual.published if usual is not None and not changes(config, usual.config) else None
    matrix = result.accuracy_matrix
    if len(matrix) <= 10:
        table = Table("after task", *(f"task {j + 1}" for j in range(len(matrix[-1]))), title="accuracy in %")
        for i, row in enumerate(matrix, start=1):
            table.add_row(str(i), *(f"{a:.1f}" for a in row))
        console.print(table)
    paper = f"   (paper {published.accuracy} ± {published.accuracy_spread})" if published else ""
    console.print(f"average accuracy  {result.accuracy:.1f} % on {result.split}{paper}")
    if result.forgetting is not None:
        both = published and published.forgetting is not None
        paper = f"   (paper {published.forgetting} ± {published.forgetting_spread})" if published and both else ""
        console.print(f"forgetting        {result.forgetting:.1f} %{paper}")
    memory = result.memory
    console.print(
        f"extra memory      {memory.images:,} images ({memory.image_mb:.2f} MB), "
        f"{memory.parameters:,} parameters ({memory.parameter_mb:.2f} MB)"
    )
    console.print(f"time              {result.seconds.train:.1f} s training, {result.seconds.evaluate:.1f} s testing")
    console.print(f"results           {escape(os.fspath(folder))}", soft_wrap=True)
    if (folder / "recalled.png").exists():
        console.print(f"picture           {escape(os.fspath(folder / 'recalled.png'))}", soft_wrap=True)
