"""Runs that are missing, made: several at a time on this machine or on a cluster, with one progress display."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from .. import data
from ..config import RunConfig
from ..data.locate import disk_errors
from ..errors import AutorecallError, ConfigError, DataError
from ..presets import changes
from ..runs.folder import check_usable, read_config, refuse_foreign
from ..runs.result import Diverged, Result, read_stopped
from ..runs.run import device
from ..storage.files import make_folder
from ..torch_state import cores
from .crew import Crew, unfinished
from .display import Display
from .rows import read_run
from .signals import watched
from .source import Source, report_left_out, source_of
from .worker import Job

if TYPE_CHECKING:
    from ..integrations.ray import RayCrew

MOST_JOBS = 1024


def check_jobs(at_once: int, ray: str | None) -> None:
    """Refuse a number of runs that cannot be made at a time."""
    if not 1 <= at_once <= MOST_JOBS:
        raise ConfigError(f"jobs is {at_once}; expected 1 to {MOST_JOBS:,} runs at a time")
    if ray is not None and at_once > 1:
        raise ConfigError("both --jobs and --ray are given, but Ray makes as many runs as it has cores; leave one out")
    if ray is not None:
        from ..integrations.ray import answering

        answering(ray)  # refuses if it is not installed or there is no cluster, before data are downloaded


def finished(job: Job) -> Result | None:
    """The result of this very run, however many threads it had; None if it has to be made."""
    folder = Path(job.folder)
    if not (folder / "result.json").exists():
        return None
    refuse_foreign(folder)
    run = read_run(folder)
    stored, found = run.config, run.result
    same = found.preset == job.preset and stored.seed == job.config.seed
    if not same or changes(job.config, stored) or changes(stored, job.config):
        raise ConfigError(f"{folder} holds a run with other settings; choose another --out, or move it aside")
    known = _fingerprint(source_of(stored, job.data))
    if found.data and known is not None and found.data != known:
        raise DataError(f"{folder} holds a finished run on other data; choose another --out, or move it aside")
    return None if job.lacks(found) else found


@cache
def _fingerprint(source: Source) -> str | None:
    """That of the data, or None if the folder given has only other datasets."""
    folder = source.folder
    with disk_errors():
        if folder is not None and folder.is_dir() and source.dataset not in (*data.OWN, *data.named_in(folder)):
            return None
    return source.fingerprint()


def diverged(job: Job) -> Diverged | None:
    """Where this very run diverged, if it did: made again, it would do so again."""
    folder = Path(job.folder)
    if not (folder / "stopped.json").exists() or (folder / "result.json").exists():
        return None
    try:
        preset, stored = read_config(folder / "config.json")
        found = read_stopped(folder / "stopped.json")
    except AutorecallError:  # whoever makes the run again will hear of it
        return None
    same = preset == job.preset and stored.seed == job.config.seed
    return found if same and not changes(job.config, stored) and not changes(stored, job.config) else None


def make(wanted: Sequence[Job], at_once: int, ray: str | None, console: Console) -> list[Job]:
    """Make the runs that are missing, or raise why that was not possible; Ctrl-C saves them all.

    Returns the runs that diverged, now or earlier: that is a result, too.
    """
    check_jobs(at_once, ray)
    missing = [job for job in wanted if finished(job) is None]
    if len(missing) < len(wanted):
        console.print(f"{len(wanted) - len(missing)} of {len(wanted)} runs have already finished")
    ended = [job for job in missing if diverged(job)]
    if ended:
        console.print(f"{len(ended)} of {len(wanted)} runs have already diverged")
    missing = [job for job in missing if job not in ended]
    if not missing:
        return ended
    again = [job for job in missing if (Path(job.folder) / "result.json").exists()]
    if again:
        console.print(f"{len(again)} finished runs are made again, as they have no curve or learner; see *.old-1")
    shared = 1 if ray else max(1, cores() // at_once)
    missing = [replace(job, config=_with_threads(job, shared)) for job in missing]
    # What would fail is refused before any run is made, which may take hours; data are downloaded once.
    for job in missing:
        check_usable(Path(job.folder))
    for name in {job.config.device for job in missing}:
        device(name)
    for source in dict.fromkeys(source_of(job.config, job.data) for job in missing):
        report_left_out(source.load(progress=True))
    if ray is None:
        make_folder(Path(missing[0].folder).parent)
    with watched() as stop, Display(console, missing) as display:
        crew: Crew | RayCrew
        if ray is None:
            crew = Crew(missing, at_once, display.told)
        else:
            from ..integrations.ray import RayCrew

            crew = RayCrew(missing, ray, display.told)
        crew.work(stop)
    for progress in crew.all:
        if progress.state == "failed" and diverged(progress.job):
            progress.state = "diverged"
    error = unfinished(crew.all)
    if error is not None:
        error.exit_code = stop.exit_code if stop() else 1
        raise error
    # As they were wanted: a cluster knows their folders by other paths.
    return ended + [job for job, made in zip(missing, crew.all, strict=True) if made.state == "diverged"]


def say_diverged(jobs: Sequence[Job], of: int) -> str:
    """How many, and where the first of them did."""
    first = diverged(jobs[0])
    why = "" if first is None else f": {first.term} became {first.value} at step {first.step}"
    more = f" (and {len(jobs) - 1} more)" if len(jobs) > 1 else ""
    return f"{len(jobs)} of {of} runs diverged: {jobs[0].folder}{why}{more}"


def _with_threads(job: Job, shared: int) -> RunConfig:
    """The threads that were asked for; those that an unfinished run began with; or a share of the cores."""
    if job.config.threads is not None:
        return job.config
    folder = Path(job.folder)
    if (folder / "result.json").exists():  # made again: with as many threads as before, for the same figures
        used = read_run(folder).result.machine.get("threads", "")
        return replace(job.config, threads=int(used) if used.isdecimal() else shared)
    if (folder / "config.json").exists():
        try:
            return replace(job.config, threads=read_config(folder / "config.json")[1].threads)
        except AutorecallError as error:
            raise DataError(f"{folder}: {error}") from error
    return replace(job.config, threads=shared)
