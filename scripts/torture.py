"""Kill runs at random moments, damage what they saved, and see that each ends as if nothing had happened.

python scripts/torture.py --minutes 5 --seed 0

Every row on the embedded digits takes part, and every CIFAR10 row on a few made pictures, so new methods join by
themselves. A run is a process of its own, forked from one that has loaded torch already: it can be killed ten times in
the time that a fresh interpreter needs to start.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch._dynamo
from PIL import Image

from autorecall import cli, pictures
from autorecall.commands import run
from autorecall.presets import PRESETS

MOST_KILLS = 12  # of one run; then it may end
LONGEST = 20.0  # seconds of torment; then it may end, too
PATIENCE = 120.0  # seconds beyond which a run hangs
REFUSED = 2  # the exit code of a run that needs a decision
DAMAGED = ("history.csv", "config.json")  # and checkpoints
KILLED = (-9, -15, -2, 143, 130)  # exit codes of those who were; any other is a run's own
SMALL = "--dataset folder --image-size 8 --stream.batch-size 4 --data"
NARROW = {"resnet18": ["--network.channels", "2"], "fourier": ["--network.features", "20"]}
LOADED = (pictures, run, torch._dynamo)  # before the fork, so that a child need not


@dataclass
class Tally:
    """What happened."""

    runs: int = 0
    kills: int = 0
    resumes: int = 0
    damages: int = 0
    afresh: int = 0
    """Runs whose config was damaged before anything was saved, so that they had to be told to start over."""
    differences: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counts = f"{self.runs} runs, {self.kills} kills, {self.resumes} resumes, {self.damages} damages"
        counts += f", {self.afresh} begun afresh"
        return f"{counts}, {len(self.differences)} differences, {len(self.lost)} lost runs"


@dataclass(frozen=True)
class Undisturbed:
    """How a run ends that is left alone."""

    files: dict[str, object]
    learning: float
    """Seconds after its start when the first step was written down."""
    end: float


class Torture:
    """Runs, one after the other, each killed until it has had enough."""

    def __init__(self, scratch: Path, seed: int, rows: list[str]) -> None:
        self.rows, self.scratch, self.random, self.tally = rows, scratch, random.Random(seed), Tally()
        self.undisturbed: dict[str, Undisturbed] = {}
        self.left_out: set[str] = set()
        _draw_pictures(scratch / "pictures", seed)

    def one_run(self) -> None:
        """Draw a run, torment it, and compare."""
        name = self.random.choice(self.rows)
        sized = ["--fraction", self.random.choice(("0.02", "0.04"))]
        if name.startswith("cifar10/"):
            sized = [*SMALL.split(), str(self.scratch / "pictures"), *NARROW[PRESETS[name].config.network.kind]]
        drawn = ["--threads", self.random.choice("12"), "--seed", self.random.choice("01")]
        words = ["run", name, *sized, "--split", "val", *drawn]
        key = " ".join(words)
        if key not in self.undisturbed and key not in self.left_out:
            self._leave_alone(key, words)
        if key in self.undisturbed:
            self._torment(key, words)

    def _leave_alone(self, key: str, words: list[str]) -> None:
        out = self.scratch / f"undisturbed-{len(self.undisturbed) + len(self.left_out)}"
        started = time.monotonic()
        process = _start([*words, "--out", str(out)], out.with_suffix(".log"))
        code = None
        while code is None and not any(out.rglob("history.csv")):
            code = _ended(process, 0.01)
        learning = time.monotonic() - started
        code = _ended(process, PATIENCE) if code is None else code
        if code == 0:
            self.undisturbed[key] = Undisturbed(_contents(out), learning, time.monotonic() - started)
        else:
            self.left_out.add(key)
            print(f"left out, because it ends with {code} by itself: {key}", flush=True)

    def _torment(self, key: str, words: list[str]) -> None:
        usual, tally = self.undisturbed[key], self.tally
        out = self.scratch / f"run-{tally.runs}"
        log = out.with_suffix(".log")
        words = [*words, "--out", str(out), "--checkpoint-seconds", self.random.choice(("0", "0.02", "0.1"))]
        tally.runs += 1
        fresh: list[str] = []
        enough = time.monotonic() + LONGEST
        for kills in range(MOST_KILLS + 1):
            last = kills == MOST_KILLS or time.monotonic() > enough
            process = _start([*words, *fresh], log)
            code = _ended(process, PATIENCE if last else self._moment(usual))
            if code is None and not last:
                tally.kills += 1
                os.kill(process, self.random.choice((signal.SIGKILL,) * 8 + (signal.SIGTERM, signal.SIGINT)))
                code = _ended(process, PATIENCE)
            if code is None:  # it hangs
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
            fresh = ["--fresh"] if code == REFUSED and not fresh and "--fresh" in _last_line(log) else []
            tally.afresh += len(fresh)
            if code not in KILLED and not fresh:
                break
            self._damage(out)
        if fresh:  # refused at the last attempt, which nobody disturbs
            code = _ended(_start([*words, *fresh], log), PATIENCE)
        tally.resumes += log.read_text(errors="replace").count("going on after step")
        if code != 0:
            tally.lost.append(f"{key}: ended with {code}, see {log}")
        elif _contents(out) != usual.files:
            tally.differences.append(f"{key}: see {out}")
        else:
            shutil.rmtree(out)
            log.unlink()

    def _moment(self, usual: Undisturbed) -> float:
        """When to kill: mostly while it learns, sometimes while it starts."""
        if self.random.random() < 0.1:
            return self.random.uniform(0, usual.learning)
        return self.random.uniform(0.95 * usual.learning, 1.05 * usual.end)

    def _damage(self, out: Path) -> None:
        """Spoil none, one or two of the files that the next process will find, unless the run is finished."""
        if any(out.rglob("result.json")):
            return
        files = sorted(path for path in out.rglob("*") if path.name in DAMAGED or path.name.startswith("step-"))
        files = [path for path in files if ".old-" not in str(path)]
        for path in self.random.sample(files, min(len(files), self.random.choice((0, 0, 1, 1, 2)))):
            self.tally.damages += 1
            content = bytearray(path.read_bytes())
            match self.random.choice(("flip", "cut", "grow", "empty", "delete")):
                case "flip" if content:
                    for _ in range(self.random.randint(1, 5)):
                        content[self.random.randrange(len(content))] ^= 1 << self.random.randrange(8)
                case "cut":
                    del content[self.random.randint(0, len(content)) :]
                case "grow":
                    content += self.random.randbytes(100)
                case "empty":
                    content.clear()
                case _ if path.name != "config.json":  # without it, a folder may be anybody's
                    path.unlink()
                    continue
            path.write_bytes(content)


def _start(words: list[str], log: Path) -> int:
    """A process that runs this command line, and what it says."""
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        code = 70
        try:
            file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(file, 1)
            os.dup2(file, 2)
            sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115  a line at once: it may be the last
            code = cli.dispatch(words)
        except SystemExit as end:  # how tyro refuses
            code = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return process


def _last_line(log: Path) -> str:
    return log.read_text(errors="replace").rstrip("\n").rpartition("\n")[2]


def _ended(process: int, patience: float) -> int | None:
    """The exit code of a process, negative after a signal; none if it is still at work then."""
    deadline = time.monotonic() + patience
    while True:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            return None
        time.sleep(0.001)


def _contents(out: Path) -> dict[str, object]:
    """All that a run left, by name, but for the time it took and how often it was saved."""
    found: dict[str, object] = {}
    for path in sorted(path for path in out.rglob("*") if path.is_file() and ".old-" not in str(path)):
        name = str(path.relative_to(out))
        found[name] = path.read_bytes()
        if path.name in ("result.json", "config.json"):
            values = json.loads(path.read_text(encoding="utf-8"))
            values.pop("seconds", None)
            values.pop("checkpoint_seconds", None)
            found[name] = values
    return found


def _draw_pictures(folder: Path, seed: int) -> None:
    """Four classes of thirty pictures: a colour a class, with noise."""
    rng = np.random.default_rng(seed)
    for label in range(4):
        (folder / f"class {label}").mkdir(parents=True)
        for number in range(30):
            pixels = rng.integers(0, 60, (8, 8, 3), dtype=np.uint8)
            pixels[..., label % 3] += 150
            Image.fromarray(pixels).save(folder / f"class {label}" / f"{number:02}.png")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Kill and damage runs at random, and compare with undisturbed ones.")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--rows", nargs="+", default=[row for row in PRESETS if not row.startswith("miniimagenet/")])
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}", flush=True)
    scratch = Path(tempfile.mkdtemp(prefix="autorecall-torture-"))
    torture = Torture(scratch, chosen.seed, chosen.rows)
    deadline = time.monotonic() + 60 * chosen.minutes
    while time.monotonic() < deadline:
        torture.one_run()
    tally = torture.tally
    print("\n".join([*tally.differences, *tally.lost, str(tally)]))
    if tally.differences or tally.lost or torture.left_out:
        return 1
    shutil.rmtree(scratch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
