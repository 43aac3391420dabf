"""Many runs at once: some workers, each a process of its own, and who does what.

A worker that dies is replaced, and what it was doing is taken up again where it was saved. To stop, workers are told to
save and leave.
"""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ..errors import StoppedError
from .worker import Job, Report, write_job

ATTEMPTS = 3  # at a run whose workers die without getting further
PATIENCE = 0.2  # seconds between two looks at whether to stop
LEAVING = 5.0  # seconds that a worker has to save its run when all is given up


@dataclass
class Progress:
    """How far one run is."""

    job: Job
    step: int = 0
    steps: int = 0
    state: str = "waiting"
    """waiting, running, finished, failed, diverged or interrupted."""
    why: str = ""
    deaths: int = 0
    step_at_death: int = -1

    def hear(self, event: Report) -> str:
        """Take note of what happened, and return the sentence that is to be passed on, if any."""
        if "step" in event:
            self.state = "running"
            self.step, self.steps = int(str(event["step"])), int(str(event["steps"]))
        for state in ("finished", "interrupted", "failed"):
            if state in event:
                self.state, self.why = state, str(event[state]) if state == "failed" else ""
        return str(event.get("warned", ""))


@dataclass
class Worker:
    """A process, and the run that it makes."""

    process: subprocess.Popen[str]
    progress: Progress | None = None
    events: queue.SimpleQueue[tuple[Worker, str]] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.events.put((self, line))
        self.process.wait()
        self.events.put((self, ""))

    def give(self, progress: Progress) -> None:
        """The next run for this worker."""
        self.progress = progress
        progress.state = "running"
        assert self.process.stdin is not None
        with suppress(OSError):  # it has died; its last event will tell
            self.process.stdin.write(write_job(progress.job) + "\n")
            self.process.stdin.flush()

    def dismiss(self) -> None:
        """There is nothing left to do."""
        self.progress = None
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()


class Crew:
    """Makes runs, several at a time."""

    def __init__(self, jobs: Sequence[Job], workers: int, told: Callable[[Progress, str], None]) -> None:
        """`told` hears of every change: the run, and a sentence if there is one."""
        self.all = [Progress(job) for job in jobs]
        self._waiting = deque(self.all)
        self._count, self._told = min(workers, len(jobs)), told
        self._events: queue.SimpleQueue[tuple[Worker, str]] = queue.SimpleQueue()
        self._workers: list[Worker] = []

    def work(self, stop: Callable[[], bool]) -> None:
        """Until all runs have ended, or `stop` says so: then all are saved."""
        asked = False
        try:
            for _ in range(self._count):
                self._hire()
            while self._workers:
                with suppress(queue.Empty):
                    self._hear(*self._events.get(timeout=PATIENCE), stop())
                if stop() and not asked:
                    asked = True
                    for worker in self._workers:
                        worker.process.send_signal(signal.SIGTERM)
        finally:
            self._end_all()

    def _end_all(self) -> None:
        """Something went wrong here, or a second Ctrl-C: those who are left save what they can, but not for long."""
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            try:
                worker.process.wait(LEAVING)
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                worker.process.kill()

    def _hire(self) -> None:
        # In a session of their own: a Ctrl-C is for this process, which tells them.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "autorecall.commands.worker"],  # nothing is imported from the working folder
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        worker = Worker(process, events=self._events)
        self._workers.append(worker)
        self._next(worker)

    def _next(self, worker: Worker) -> None:
        if self._waiting:
            worker.give(self._waiting.popleft())
        else:
            worker.dismiss()

    def _hear(self, worker: Worker, line: str, stopping: bool) -> None:
        progress = worker.progress
        if not line:
            self._workers.remove(worker)
            worker.dismiss()
            if progress is not None:
                self._died(progress, worker.process.returncode, stopping)
            return
        if progress is None:
            return
        try:
            event = json.loads(line)
        except ValueError:  # somebody else's words
            return
        sentence = progress.hear(event)
        if (
            progress.state == "interrupted" and not stopping
        ):  # somebody else told it to; it leaves, and then it is noted
            progress.state = "running"
        self._told(progress, sentence)
        if progress.state != "running":
            if stopping:
                worker.dismiss()
            else:
                self._next(worker)

    def _died(self, progress: Progress, code: int, stopping: bool) -> None:
        """A worker ended in the middle of a run."""
        if stopping:
            progress.state = "interrupted"
            return
        progress.deaths = progress.deaths + 1 if progress.step <= progress.step_at_death else 1
        progress.step_at_death = max(progress.step_at_death, progress.step)
        how = (
            f"was killed by signal {-code}" if code < 0 else f"ended with code {code}" if code else "was told to leave"
        )
        if progress.deaths >= ATTEMPTS:
            progress.state, progress.why = "failed", f"its process {how} {ATTEMPTS} times; is there enough memory?"
            self._told(progress, "")
        else:
            self._told(progress, f"the process that made {progress.job.folder} {how}; it is taken up again")
            self._waiting.appendleft(progress)
        if self._waiting:
            self._hire()


def unfinished(crew: Sequence[Progress]) -> StoppedError | None:
    """What is to be said if not all runs have finished."""
    failed = [progress for progress in crew if progress.state == "failed"]
    left = [progress for progress in crew if progress.state in ("interrupted", "waiting", "running")]
    if left:
        return StoppedError(f"interrupted with {len(left)} of {len(crew)} runs to go; give the same command to go on")
    if failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        return StoppedError(f"{len(failed)} of {len(crew)} runs failed: {failed[0].job.folder}: {failed[0].why}{more}")
    return None
