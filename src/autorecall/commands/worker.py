"""A process that makes runs for `autorecall sweep`: jobs come as lines of JSON, what happens goes back the same way.

It stops when it is told to by a signal, and when the process that gave it jobs is gone; runs are saved then.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from torch import Tensor

from ..config import RunConfig
from ..data import Dataset
from ..errors import AutorecallError, InterruptedRunError, InUseError
from ..own import Own
from ..recall.batch import Recalled
from ..runs.folder import LEARNER, RECALLED
from ..runs.loop import Observer
from ..runs.result import Result, read_result
from ..runs.run import run
from ..storage.schema import decode, to_json
from .matrix import is_own
from .process import keep_freed_memory
from .signals import Stop, watched
from .source import Source, source_of

SECONDS = 0.5  # between two reports of how far a run is


@dataclass(frozen=True)
class Job:
    """A run to make."""

    preset: str
    config: RunConfig
    folder: str
    data: str | None = None
    """The folder of the data, if one was named."""
    keep_learner: bool | None = False
    """None: if it keeps no image."""
    draw_curve: bool = False
    """Whether the curve of accuracy is wanted, which runs of earlier versions do not have."""
    own: Own = field(default_factory=Own)
    """The user's classes that the config has."""

    def lacks(self, result: Result) -> bool:
        """Whether a finished run was made without something that is wanted."""
        learner = bool(self.keep_learner) and not (Path(self.folder) / LEARNER).exists()
        return learner or (self.draw_curve and not result.curve)


def write_job(job: Job) -> str:
    """A job as a line of text."""
    return json.dumps(to_json(job))


def read_job(line: str) -> Job:
    """A job from what `write_job` wrote; the classes that its command line named are imported."""
    values = json.loads(line)
    own = decode(Own, values["own"], "own")
    assert isinstance(own, Own)
    own.imported()
    job = decode(Job, values, "job")
    assert isinstance(job, Job)
    return job


Report: TypeAlias = dict[str, object]
"""What happened to a run: how far it is (step of steps), a sentence (warned), or how it ended (finished, interrupted,
failed)."""


class Reporter(Observer):
    """Reports how far a run is."""

    def __init__(self, job: Job, classes: tuple[str, ...], say: Callable[[Report], None]) -> None:
        self._job, self._classes, self._say = job, classes, say
        self._said = 0.0

    def resumed(self, step: int, steps: int) -> None:
        """The first word about a run that goes on."""
        self._say({"step": step, "steps": steps})

    def warned(self, sentence: str) -> None:
        """Pass it on."""
        self._say({"warned": sentence})

    def step(self, step: int, steps: int, task: int, numbers: Mapping[str, float]) -> None:
        """Now and then."""
        if time.monotonic() - self._said >= SECONDS or step == steps:
            self._said = time.monotonic()
            self._say({"step": step, "steps": steps})

    def recalled(self, x: Tensor, recalled: Recalled, targets: Tensor) -> None:
        """Draw the last recalled batch, as `autorecall run` does."""
        if is_own(self._job.config.dataset):
            return
        from .pictures import draw_recalled

        draw_recalled(Path(self._job.folder) / RECALLED, x, recalled, targets, self._classes)

    def finished(self, result: Result) -> None:
        """Draw the curves, as `autorecall run` does."""
        from .pictures import draw_curves

        draw_curves(Path(self._job.folder), result)


@lru_cache(maxsize=1)  # the next job is most likely on the same data
def _loaded(source: Source) -> Dataset:
    return source.load()


def do(job: Job, say: Callable[[Report], None], stop: Stop) -> None:
    """Make one run, and say how it ended; a folder that another process holds is an InUseError."""
    config = job.config
    try:
        dataset = _loaded(source_of(config, job.data))
        reporter = Reporter(job, dataset.classes, say)
        folder = Path(job.folder)
        again = (folder / "result.json").exists() and job.lacks(read_result(folder / "result.json"))
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: reporter.warned(str(message))
            run(job.preset, config, dataset, folder, reporter, again, stop, job.keep_learner)
        say({"finished": True})
    except InterruptedRunError:
        say({"interrupted": True})
    except InUseError:
        raise
    except AutorecallError as error:
        say({"failed": str(error)})
    except MemoryError:
        say({"failed": "it needs more memory than the machine has; lower the sizes in the config"})
    except Exception as error:  # a mistake of ours, or torch out of memory: the other runs go on
        say({"failed": f"{type(error).__name__}: {error}"})


def main() -> None:
    """Do jobs until there are no more."""
    stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # only what is said on purpose may go to the other side
    keep_freed_memory()
    jobs: list[str] = []
    changed = threading.Condition()
    with watched() as stop:

        def listen() -> None:
            for line in sys.stdin:
                with changed:
                    jobs.append(line)
                    changed.notify()
            with changed:  # the other side is gone, or has no more
                jobs.append("")
                stop.signal = stop.signal or 1
                changed.notify()

        def say(event: Report) -> None:
            try:
                print(json.dumps(event), file=stdout, flush=True)
            except OSError:  # nobody listens any more
                stop.signal = stop.signal or 1

        threading.Thread(target=listen, daemon=True).start()
        while not stop():
            with changed:
                while not jobs and not stop():
                    changed.wait(SECONDS)
            if jobs and jobs[0]:
                try:
                    do(read_job(jobs.pop(0)), say, stop)
                except AutorecallError as error:  # the folder is in use, or a user's class cannot be imported any more
                    say({"failed": str(error)})
            elif jobs:
                break
    os._exit(0)  # the thread still reads


if __name__ == "__main__":
    main()
