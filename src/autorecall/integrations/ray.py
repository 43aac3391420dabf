"""Runs as tasks of a Ray cluster whose nodes share the folder of results.

A task that loses its node is given to another one, which resumes the run where it was saved. Tasks report to a small
actor next to the program that started them, and ask it whether to stop.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..commands.crew import ATTEMPTS, Progress
from ..commands.signals import Stop
from ..commands.worker import Job, Report, do, read_job, write_job
from ..errors import ConfigError, InUseError

PATIENCE = 0.5  # seconds between two looks at what has happened
CONNECTING = 5.0  # seconds that a cluster may take to answer
RELEASING = 300.0  # seconds that a lost node may go on holding a folder; a lease of NFS takes 90
EXPECTED = "expected HOST:PORT of its head node, auto for one that runs on this machine, or local to start one here"


class Board:
    """What tasks have reported, and whether they are to stop."""

    def __init__(self) -> None:
        self._news: list[tuple[int, Report]] = []
        self._stop = False

    def report(self, number: int, event: Report) -> bool:
        """What happened to a run; the answer is whether to stop."""
        if event:
            self._news.append((number, event))
        return self._stop

    def news(self) -> list[tuple[int, Report]]:
        """What has been reported since the last time."""
        found, self._news = self._news, []
        return found

    def stop(self) -> None:
        """Tell all tasks to save and leave."""
        self._stop = True


def task(number: int, line: str, board: Any) -> None:
    """One run, in a process of Ray's."""
    import ray

    def say(event: Report) -> None:
        try:
            stop.signal = stop.signal or int(ray.get(board.report.remote(number, event)))
        except ray.exceptions.RayError:  # the program that wanted it is gone
            stop.signal = stop.signal or 1

    class AskingStop(Stop):
        """Asks the board now and then, also during a long test."""

        asked = 0.0

        def __call__(self) -> bool:
            if time.monotonic() - self.asked > PATIENCE:
                self.asked = time.monotonic()
                say({})
            return super().__call__()

    job, stop = read_job(line), AskingStop()

    given_up = time.monotonic() + RELEASING
    while True:
        try:
            do(job, say, stop)
            return
        except InUseError as error:  # by the process of a node that was lost just now
            if time.monotonic() > given_up:
                say({"failed": str(error)})
                return
            time.sleep(PATIENCE)


class RayCrew:
    """Makes runs on a cluster, as `Crew` does on this machine."""

    def __init__(self, jobs: Sequence[Job], address: str, told: Callable[[Progress, str], None]) -> None:
        self.all = [Progress(_anywhere(job)) for job in jobs]
        self._address, self._told = address, told

    def work(self, stop: Callable[[], bool]) -> None:
        """Until all runs have ended, or `stop` says so: then all are saved."""
        ray = _connected(self._address)
        try:
            here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
                ray.get_runtime_context().get_node_id(), soft=False
            )
            board = ray.remote(Board).options(num_cpus=0, scheduling_strategy=here).remote()
            largest = max((node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]), default=0)
            given = {}
            for number, progress in enumerate(self.all):
                threads = progress.job.config.threads or 1
                if threads > largest:
                    raise ConfigError(
                        f"threads is {threads} but no node of the cluster has more than {largest:g} cores"
                    )
                options = {"num_cpus": threads, "max_retries": ATTEMPTS, "name": progress.job.preset}
                line = write_job(progress.job)
                given[ray.remote(task).options(**options).remote(number, line, board)] = progress
            self._watch(ray, board, given, stop)
        finally:
            ray.shutdown()

    def _watch(self, ray: Any, board: Any, given: dict[Any, Progress], stop: Callable[[], bool]) -> None:
        asked = False
        while given:
            ended, _ = ray.wait(list(given), num_returns=len(given), timeout=PATIENCE)
            for number, event in ray.get(board.news.remote()):
                self._told(self.all[number], self.all[number].hear(event))
            for reference in ended:
                progress = given.pop(reference)
                try:
                    ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    progress.state, progress.why = "failed", f"{type(error.cause).__name__}: {error.cause}"
                    self._told(progress, "")
                except ray.exceptions.RayError as error:
                    progress.state = "interrupted" if asked else "failed"
                    progress.why = f"its process or node was lost {ATTEMPTS + 1} times ({type(error).__name__})"
                    self._told(progress, "")
            if stop() and not asked:
                asked = True
                ray.get(board.stop.remote())
                for reference in [r for r, progress in given.items() if progress.state == "waiting"]:
                    ray.cancel(reference)


def _anywhere(job: Job) -> Job:
    """The job as a process in another folder and with another environment understands it."""
    data = job.data or (os.environ.get("AUTORECALL_DATA") if job.config.dataset != "mnist" else None)
    return replace(job, folder=str(Path(job.folder).absolute()), data=data and str(Path(data).absolute()))


def _imported() -> Any:
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise ConfigError("--ray needs Ray, which is not installed; install autorecall[ray], or use --jobs") from error
    return ray


def answering(address: str) -> Any:
    """Ray, if it is installed; a cluster that does not answer is refused within seconds."""
    ray = _imported()
    if address not in ("local", "auto"):
        host, _, port = address.rpartition(":")
        if not host or "/" in host or not port.isdecimal():
            raise ConfigError(f"--ray is {address!r:.80}; {EXPECTED}")
        try:
            socket.create_connection((host, int(port)), CONNECTING).close()
        except (OSError, OverflowError, UnicodeError) as error:
            raise ConfigError(f"no Ray cluster answers at {address}; {EXPECTED}") from error
    return ray


def _connected(address: str) -> Any:
    """Ray, connected to the cluster."""
    ray = answering(address)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error", include_dashboard=False)
    except ConnectionError as error:
        raise ConfigError(f"no Ray cluster answers at {address}, or this machine is none of its; {EXPECTED}") from error
    except RuntimeError as error:  # e.g. other versions of Python or Ray
        raise ConfigError(f"the Ray cluster at {address} cannot be used: {error}") from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # which Ray replaces with one that saves nothing
    return ray
