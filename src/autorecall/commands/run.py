"""`autorecall run`: one preset, with any field changed, to one run folder."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from torch import Tensor

from ..checks import brief
from ..config import ARRAYS, RunConfig
from ..errors import ConfigError, DataError, InterruptedRunError
from ..presets import DEFAULT, PRESETS, changes, preset
from ..recall.batch import Recalled
from ..runs.folder import LEARNER, TENSORBOARD, earlier_result, read_config
from ..runs.loop import Observer
from ..runs.names import run_folder
from ..runs.result import Result
from ..runs.run import run
from ..torch_state import cores
from .matrix import Matrix, is_own
from .memory import keep_freed_memory
from .output import quiet_console
from .signals import watched
from .source import Source, report_left_out, source_of
from .text import complain, printable
from .words import harmless, silent

if TYPE_CHECKING:
    from ..integrations.tensorboard import TensorBoard


@dataclass(frozen=True)
class Arguments:
    """Train one learner on one stream, and write its results to OUT/<dataset>/<method>/seed-<N>.

    What differs from the preset becomes part of the folder's name, such as arm+ascent_steps=20.

    PRESET is a row of the paper's tables, as printed by `autorecall list`. Every option below changes one field of it;
    options depend on the preset, so `autorecall run PRESET --help` shows those of its own learner.

    The folder gets config.json (run it again with --config), history.csv (one row per step), result.json and, for
    methods that recall images, recalled.png. To resume an interrupted run, give the same command again.
    """

    preset: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PRESET")]
    """The row to run."""

    run: Annotated[RunConfig, tyro.conf.arg(name="")]

    out: Path = Path("runs")
    """Where run folders go."""

    data: Path | None = None
    """Folder of the data (with --dataset folder, your own), or your own .npz file; if unset, AUTORECALL_DATA, a cache
    or a download."""

    config: Path | None = None
    """Repeat an earlier run from its config.json, instead of a preset."""

    fresh: bool = False
    """Start over, moving an earlier run of the same name aside."""

    keep_learner: bool = False
    """Save the learner at the end as learner.safetensors: network, teacher, and any images that the method keeps. With
    data of your own it is saved anyway, unless the method keeps images."""

    pictures: bool = False
    """Draw recalled.png from data of your own as well; it shows some of the last images, and what came of them."""

    tensorboard: bool = False
    """Write event files for TensorBoard to the folder tensorboard of the run (needs the package tensorboard)."""


def main(arguments: list[str]) -> None:
    """Parse, run, report."""
    chosen = parse(arguments)
    config = chosen.run
    folder = run_folder(chosen.out, chosen.preset, config)
    if chosen.tensorboard:
        _board(folder)  # refuses if the package is missing, before anything is done
    source = source_of(config, chosen.data)
    console = quiet_console()
    if chosen.data is not None and config.dataset == "mnist":
        complain("--data is not used, as mnist comes with the package; add --dataset folder for your own images")
    earlier = (
        None
        if chosen.fresh
        else earlier_result(folder, chosen.preset, config, config.threads or cores(), lambda: _fingerprint(source))
    )
    if earlier is not None and chosen.keep_learner and not (folder / LEARNER).exists():
        raise ConfigError(f"{folder} holds a finished run that did not keep its learner; --fresh runs it again")
    if earlier is not None:
        if chosen.tensorboard:
            with _board(folder) as board:
                board.complete(earlier)
        console.print(f"already finished: {printable(str(folder))}; --fresh runs it again", soft_wrap=True)
        print_matrix(console, config, earlier)
        print_result(console, config, earlier, folder)
        return
    keep_freed_memory()
    dataset = source.load(progress=True)
    report_left_out(dataset)
    tasks = [[dataset.classes[label] for label in task] for task in config.stream.task_classes(dataset.classes)]
    matrix = Matrix(config.dataset, tasks, console.width)
    title = f"{chosen.preset} seed {config.seed}"
    pictures = chosen.pictures or not is_own(config.dataset)
    keep_learner = chosen.keep_learner or (None if is_own(config.dataset) else False)
    with (
        watched() as stop,
        Bar(console, title, folder, dataset.classes, matrix, pictures) as bar,
        _board(folder, bar) if chosen.tensorboard else nullcontext(bar) as observer,
    ):
        try:
            result = run(chosen.preset, config, dataset, folder, observer, chosen.fresh, stop, keep_learner)
        except InterruptedRunError as error:
            error.exit_code = stop.exit_code
            raise
    if bar.rows < len(result.accuracy_matrix):  # the others were printed before an interruption, or never
        print_matrix(console, config, result)
    print_result(console, config, result, folder)


def _board(folder: Path, observer: Observer | None = None) -> TensorBoard:
    from ..integrations.tensorboard import TensorBoard

    return TensorBoard(folder, observer)


def _fingerprint(source: Source) -> str | None:
    return None if source.dataset == "mnist" else source.fingerprint()


def parse(arguments: Sequence[str]) -> Arguments:
    """The arguments, with the preset or config that they name as defaults."""
    if (_option(arguments, "--data") or "").lower().endswith(".npz") and _option(arguments, "--dataset") is None:
        arguments = [*arguments, "--dataset", "npz"]
    file = _option(arguments, "--config")
    if file is None:
        name = _preset_among(arguments)
        return _checked(_parse(arguments, name, preset(name).config))
    named = arguments[0] if not arguments[0].startswith("-") else None
    if named is not None:
        raise ConfigError(f"both the preset {brief(named)} and --config are given; expected one of them")
    try:
        stored, config = read_config(Path(file), links=True)
    except DataError as error:
        raise ConfigError(str(error) if file in str(error) else f"{file}: {error}") from error
    if not re.fullmatch("[a-z0-9-]+/[a-z0-9-]+", stored):  # it becomes a folder
        raise ConfigError(f"{file}: its preset is {brief(stored)}; expected a name such as {DEFAULT}")
    parsed = _parse(arguments, stored, config)
    if parsed.preset != stored:
        raise ConfigError(f"both the preset {brief(parsed.preset)} and --config are given; expected one of them")
    return _checked(parsed)


def _preset_among(arguments: Sequence[str]) -> str:
    """The preset that is named, first or after options; the options depend on it."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0]
    words = [word for word in arguments if word not in ("-h", "--help")]
    for name in dict.fromkeys(word for word in words if word in PRESETS):
        # It may be the value of an option, such as --out mnist/arm: then it is neither the preset nor left over.
        try:
            with silent():
                parsed, unknown = tyro.cli(
                    Arguments,
                    args=words,
                    default=Arguments("", PRESETS[name].config),
                    config=(tyro.conf.AvoidSubcommands,),
                    return_unknown_args=True,
                )
        except ConfigError:  # in a setting, which is refused again later, aloud
            return name
        except SystemExit:
            continue
        if name in (parsed.preset, *unknown):
            return name
    return DEFAULT


def _parse(arguments: Sequence[str], name: str, config: RunConfig) -> Arguments:
    with harmless([*arguments, config.device, *config.stream.order]):  # the settings that may be any text
        return tyro.cli(
            Arguments,
            prog="autorecall run",
            args=arguments,
            default=Arguments(name, config),
            config=(tyro.conf.AvoidSubcommands,),
        )


def _checked(chosen: Arguments) -> Arguments:
    if chosen.config is None:
        preset(chosen.preset)
    if chosen.run.dataset == ARRAYS:
        raise ConfigError("dataset is 'arrays', which only Python can give; use --dataset folder for your own images")
    return chosen


def _option(arguments: Sequence[str], name: str) -> str | None:
    for index, word in enumerate(arguments):
        if word == name and index + 1 < len(arguments):
            return arguments[index + 1]
        if word.startswith(f"{name}="):
            return word.removeprefix(f"{name}=")
    return None


class Bar(Observer):
    """A progress bar with the time left, one row of the matrix per task, and the picture at the end."""

    def __init__(
        self, console: Console, title: str, folder: Path, classes: Sequence[str], matrix: Matrix, pictures: bool
    ) -> None:
        self._console, self._title, self._folder, self._classes = console, title, folder, classes
        self._pictures = pictures
        self._matrix, self.rows = matrix, 0
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}", markup=False),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task: TaskID | None = None

    def resumed(self, step: int, steps: int) -> None:
        """Say where the run resumes."""
        self._console.print(f"resuming after step {step} of {steps}: {printable(str(self._folder))}", soft_wrap=True)

    def warned(self, sentence: str) -> None:
        """Print it."""
        complain(sentence)

    def step(self, step: int, steps: int, task: int, numbers: Mapping[str, float]) -> None:
        """Advance the bar."""
        if self._task is None:
            self._task = self._progress.add_task(self._title, total=steps, loss="")
        loss = f"loss {numbers['loss']:.2f}" if "loss" in numbers else ""
        self._progress.update(self._task, completed=step, description=f"{self._title} task {task}", loss=loss)

    def evaluated(self, task: int, accuracies: list[float]) -> None:
        """Print the accuracy on every task."""
        heading = self._matrix.heading()
        if heading is not None and not self.rows:
            self._console.print(heading, soft_wrap=True)
        self._console.print(self._matrix.row(task, accuracies))
        self.rows += 1

    def recalled(self, x: Tensor, recalled: Recalled, targets: Tensor) -> None:
        """Draw the last recalled batch, if it may be drawn."""
        if not self._pictures:
            return
        from .pictures import draw_recalled

        draw_recalled(self._folder / "recalled.png", x, recalled, targets, self._classes)

    def __enter__(self) -> Bar:
        self._progress.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.__exit__(None, None, None)


def print_matrix(console: Console, config: RunConfig, result: Result) -> None:
    """One row of accuracies for every task."""
    for line in Matrix(config.dataset, result.tasks, console.width).lines(result.accuracy_matrix):
        console.print(line, soft_wrap=True)


def print_result(console: Console, config: RunConfig, result: Result, folder: Path) -> None:
    """Accuracy, forgetting, the memory, and where everything is."""
    usual = PRESETS.get(result.preset)
    published = usual.published if usual is not None and not changes(config, usual.config) else None
    paper = f"   (paper {published.accuracy} ± {published.accuracy_spread})" if published else ""
    some = "" if config.test_images is None else f", about {config.test_images:,} images"
    console.print(f"average accuracy  {result.accuracy:.1f} % on {result.split}{some}{paper}")
    if result.forgetting is not None:
        both = published and published.forgetting is not None
        paper = f"   (paper {published.forgetting} ± {published.forgetting_spread})" if published and both else ""
        console.print(f"forgetting        {result.forgetting:.1f} %{paper}")
    memory = result.memory
    console.print(
        f"extra memory      {memory.images:,} images ({memory.image_mb:.2f} MB), "
        f"{memory.parameters:,} parameters ({memory.parameter_mb:.2f} MB)"
        + (f", {memory.statistics:,} statistics ({memory.statistic_mb:.2f} MB)" if memory.statistics else "")
    )
    console.print(f"time              {result.seconds.train:.1f} s training, {result.seconds.evaluate:.1f} s testing")
    if result.left_out:
        console.print(f"left out          {result.left_out:,} image{'s' * (result.left_out > 1)} that cannot be read")
    console.print(f"results           {printable(os.fspath(folder))}", soft_wrap=True)
    if (folder / "recalled.png").exists():
        console.print(f"picture           {printable(os.fspath(folder / 'recalled.png'))}", soft_wrap=True)
    if (folder / TENSORBOARD).exists():
        console.print(f"tensorboard       --logdir {printable(os.fspath(folder / TENSORBOARD))}", soft_wrap=True)
