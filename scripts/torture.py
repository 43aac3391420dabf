"""Kill runs at random moments, damage what they saved, and see that each ends as if nothing had happened.

Files are cut, changed, removed, forged with a right checksum, and replaced by pipes, links and folders.

python scripts/torture.py --minutes 5 --seed 0

Every row on the embedded digits takes part, and every CIFAR10 row on a few made pictures, so new methods join by
themselves. A run is a process of its own, forked from one that has loaded torch and recalled already: it can be killed
ten times in the time that a fresh interpreter needs to start.

A moment is a number of calls made by autorecall, counted by the process that is killed. So a busy machine changes
nothing, and a seed kills the same runs at nearly the same places again.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import numpy as np
import torch
from PIL import Image
from safetensors import safe_open

from autorecall import ARM, ARMConfig, AutorecallError, cli
from autorecall.commands import pictures, run
from autorecall.networks import ResNet18Config
from autorecall.presets import PRESETS
from autorecall.runs import history
from autorecall.storage.state_file import read_state, write_state

MOST_KILLS = 12  # of one run; then it may end
PATIENCE = 300.0  # seconds beyond which a run hangs, of which it needs a few
REFUSED = 2  # the exit code of a run that needs a decision
DAMAGED = ("history.csv", "config.json")  # and checkpoints
IRREGULAR = ("pipe", "link", "folder")
BEGUN_ANEW = "its rows begin where the run resumes"  # said of a history whose copies were both damaged
CHANGED = "was changed by something else during the run"  # said of a history at the end, if far from its own end
SHORT = 500  # bytes at the end of a history that are compared, in half of the runs: so the others count as long
KILLED = (-9, -15, -2, 143, 130)  # exit codes of those who were; any other is a run's own
SMALL = "--dataset folder --image-size 8 --stream.batch-size 4 --data"
NARROW = {
    "resnet18": ["--network.channels", "2"],
    "fourier": ["--network.features", "20"],
    "descriptor": ["--network.map-size", "8", "--network.first-images", "10"],
    "patches": ["--network.filters", "5", "--network.first-images", "10"],
}
PACKAGE = str(Path(cli.__file__).parent)
LOADED = (pictures, run)  # before the fork, so that a child need not


@dataclass
class Tally:
    """What happened."""

    runs: int = 0
    kills: int = 0
    resumes: int = 0
    damages: int = 0
    refusals: int = 0
    """Of a file that is a pipe, a link or a folder, which was then removed."""
    afresh: int = 0
    """Runs with a config that cannot be known or a forged checkpoint, so that they had to be told to start over."""
    histories: int = 0
    """Runs whose history was damaged beyond repair, as they said."""
    differences: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counts = f"{self.runs} runs, {self.kills} kills, {self.resumes} resumes, {self.damages} damages"
        counts += f", {self.refusals} refusals, {self.afresh} begun afresh, {self.histories} histories without all rows"
        return f"{counts}, {len(self.differences)} differences, {len(self.lost)} lost runs"


@dataclass(frozen=True)
class Undisturbed:
    """How a run ends that is left alone."""

    files: dict[str, object]
    learning: int
    """Calls before the first step was written down."""
    end: int
    """Calls in all."""


class Torture:
    """Runs, one after the other, each killed until it has had enough."""

    def __init__(self, scratch: Path, seed: int, rows: list[str]) -> None:
        self.rows, self.scratch, self.random, self.tally = rows, scratch, random.Random(seed), Tally()
        self.undisturbed: dict[str, Undisturbed] = {}
        self.left_out: set[str] = set()
        _draw_pictures(scratch / "pictures", seed)
        (scratch / "precious").write_text("not ours")
        _recall_once()
        if any("gen" in row for row in rows):
            importlib.import_module("torch._dynamo")  # Adam wants it, and it takes seconds to load

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
        counted = out.with_suffix(".calls")
        code = _ended(_start([*words, "--out", str(out)], out.with_suffix(".log"), _Calls(report=counted)))
        if code == 0:
            learning, end = map(int, counted.read_text().split())
            self.undisturbed[key] = Undisturbed(_contents(out), learning, end)
        else:
            self.left_out.add(key)
            print(f"left out, because it ends with {code} by itself: {key}", flush=True)

    def _torment(self, key: str, words: list[str]) -> None:
        usual, tally = self.undisturbed[key], self.tally
        out = self.scratch / f"run-{tally.runs}"
        log = out.with_suffix(".log")
        words = [*words, "--out", str(out), "--checkpoint-seconds", self.random.choice(("0", "0", "1e9"))]
        tally.runs += 1
        long = self.random.random() < 0.5
        fresh: list[str] = []
        for attempt in range(MOST_KILLS + 1):
            calls = self._death(usual) if attempt < MOST_KILLS else _Calls()
            code = _ended(_start([*words, *fresh], log, calls, long))
            while code == REFUSED and (irregular := _refused(log, out)):
                tally.refusals += 1
                irregular.rmdir() if irregular.is_dir() and not irregular.is_symlink() else irregular.unlink()
                code = _ended(_start([*words, *fresh], log, calls, long))
            fresh = ["--fresh"] if code == REFUSED and not fresh and "--fresh" in _last_line(log) else []
            tally.kills += code in KILLED
            tally.afresh += len(fresh)
            if code not in KILLED and not fresh:
                break
            if attempt < MOST_KILLS - 1:  # so that the last two are refused at most once
                self._damage(out)
        if fresh:  # refused at the last attempt, which nobody disturbs
            code = _ended(_start([*words, *fresh], log, _Calls(), long))
        said = log.read_text(errors="replace")
        tally.resumes += said.count("resuming after step")
        if (self.scratch / "precious").read_text() != "not ours":
            tally.lost.append(f"{key}: wrote through a link, see {log}")
        elif code != 0 or "Traceback" in said:
            tally.lost.append(f"{key}: ended with {code}, see {log}")
        elif not self._as_usual(_contents(out), usual.files, said):
            tally.differences.append(f"{key}: see {out}")
        else:
            shutil.rmtree(out)
            log.unlink()

    def _as_usual(self, found: dict[str, object], usual: dict[str, object], said: str) -> bool:
        """Whether two runs left the same, but for rows of a history that one said it had lost."""
        if found == usual or not (BEGUN_ANEW in said or CHANGED in said):
            return found == usual
        self.tally.histories += 1
        names = [name for name in usual if name.endswith("history.csv")]
        drawn = [name for name in usual if name.endswith("curves.png")]  # from the history
        same = {**found, **{name: usual[name] for name in (*names, *drawn)}} == usual
        # Its header, and then the rows from where it began anew; what something else changed may be anything.
        return same and (CHANGED in said or all(_is_end(found[name], usual[name]) for name in names))

    def _death(self, usual: Undisturbed) -> _Calls:
        """When and how to be killed: mostly while it learns, sometimes while it starts."""
        first, last = int(0.95 * usual.learning), int(1.05 * usual.end)
        if self.random.random() < 0.1:
            moment = self.random.randint(1, first)
        else:  # rather soon: one that goes on has less to do
            moment = int(first + (last - first) * self.random.random() ** 2)
        return _Calls(moment, self.random.choice((signal.SIGKILL,) * 8 + (signal.SIGTERM, signal.SIGINT)))

    def _damage(self, out: Path) -> None:
        """Spoil none, one or two of the files that the next process will find, unless the run is finished."""
        if any(out.rglob("result.json")):
            return
        files = sorted(path for path in out.rglob("*") if path.name in DAMAGED or path.name.startswith("step-"))
        files = [path for path in files if ".old-" not in str(path)]
        for path in self.random.sample(files, min(len(files), self.random.choice((0, 0, 1, 1, 2)))):
            if not path.is_file() or path.is_symlink():  # spoiled already, and nobody came by
                continue
            self.tally.damages += 1
            content = bytearray(path.read_bytes())
            how = self.random.choice(("flip", "cut", "grow", "empty", "delete", "forge", *IRREGULAR))
            match how:
                case "forge" if path.suffix == ".safetensors":
                    self._forge(path)
                    continue
                case "pipe" | "link" | "folder" if path.name != "config.json":
                    path.unlink()
                    if how == "pipe":
                        os.mkfifo(path)
                    elif how == "link":
                        path.symlink_to(self.scratch / "precious")
                    else:
                        path.mkdir()
                    continue
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

    def _forge(self, path: Path) -> None:
        """Put a value into a checkpoint that cannot be, with a right checksum."""
        try:
            state = copy.deepcopy(dict(read_state(path)))
        except AutorecallError:  # damaged before
            return
        run, learner = state["run"], state["learner"]
        assert isinstance(run, dict)
        assert isinstance(learner, dict)
        match self.random.choice(("matrix", "steps", "rate", "weights", "history")):
            case "matrix":
                run["matrix"] = [[float("nan")] * 5]
            case "steps":
                run["steps"] += self.random.choice((-1, 1, 10**9))
            case "rate":
                learner["optimizer"]["param_groups"][0]["lr"] = "fast"
            case "weights":
                first = next(iter(learner["network"]))
                learner["network"][first] = torch.full_like(learner["network"][first], float("nan"))
            case _:
                state["history"]["size"] = -5  # type: ignore[index]
        write_state(path, state)


class _Calls:
    """Counts the calls that autorecall makes in this process, and may kill it at one of them."""

    def __init__(self, moment: int = 0, number: int = 0, report: Path | None = None) -> None:
        self.moment, self.number, self.report = moment, number, report
        self.count = self.learning = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_call") and frame.f_code.co_filename.startswith(PACKAGE):
            self.count += 1
            if self.count == self.moment:
                os.kill(os.getpid(), self.number)
            if not self.learning and frame.f_code is history.History.add.__code__:
                self.learning = self.count

    def dispatch(self, words: list[str]) -> int:
        """Run a command line meanwhile."""
        sys.setprofile(self)
        try:
            return cli.dispatch(words)
        finally:
            sys.setprofile(None)
            if self.report is not None:
                self.report.write_text(f"{self.learning} {self.count}")


def _recall_once() -> None:
    """Recall on two threads, which a forked process does not inherit."""
    torch.set_num_threads(1)
    learner = ARM(ResNet18Config(channels=8).build((3, 8, 8), 4), ARMConfig(recalled_images=4, ascent_steps=1))
    learner.threads = 2
    for label in range(4):
        learner.observe(torch.rand(4, 3, 8, 8), torch.full((4,), label))


def _is_end(found: object, usual: object) -> bool:
    assert isinstance(found, bytes)
    assert isinstance(usual, bytes)
    mine, theirs = found.splitlines(), usual.splitlines()
    return mine[:1] == theirs[:1] and mine[1:] == theirs[len(theirs) - len(mine) + 1 :]


def _refused(log: Path, out: Path) -> Path | None:
    """The pipe, link or folder that a run refused, by the name it gave."""
    found = re.search(r"^autorecall: (.+?) is a (?:pipe|symbolic link|folder), ", _last_line(log))
    return Path(found[1]) if found and out in Path(found[1]).parents else None


def _start(words: list[str], log: Path, calls: _Calls, long: bool = False) -> int:
    """A process that runs this command line, and what it says; its history counts as `long`."""
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        code = 70
        try:
            file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(file, 1)
            os.dup2(file, 2)
            sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115  a line at once: it may be the last
            if long:
                history.END = SHORT
            code = calls.dispatch(words)
        except SystemExit as end:  # how tyro refuses
            code = int(end.code or 0)
        except KeyboardInterrupt:  # between the command and here
            code = 130
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return process


def _last_line(log: Path) -> str:
    return log.read_text(errors="replace").rstrip("\n").rpartition("\n")[2]


def _ended(process: int) -> int | None:
    """The exit code of a process, negative after a signal; none if it hangs."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


def _contents(out: Path) -> dict[str, object]:
    """All that a run left, by name, but for the time it took and how often it was saved."""
    found: dict[str, object] = {}
    files = [path for path in out.rglob("*") if path.is_file() and ".old-" not in str(path)]
    for path in sorted(path for path in files if not path.name.startswith("history.csv.damaged-")):
        name = str(path.relative_to(out))
        found[name] = _checksum(path) if path.suffix == ".safetensors" else path.read_bytes()
        if path.name in ("result.json", "config.json"):
            values = json.loads(path.read_text(encoding="utf-8"))
            values.pop("seconds", None)
            values.pop("checkpoint_seconds", None)
            found[name] = values
    return found


def _checksum(path: Path) -> str:
    """That over all of a saved state; the file holds its parts in any order."""
    read_state(path)  # it is right
    with safe_open(path, "pt") as file:
        return str(file.metadata()["sha256"])


def _draw_pictures(folder: Path, seed: int) -> None:
    """Four classes of thirty pictures: one colour per class, with noise."""
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
    parser.add_argument("--minutes", type=float, default=5.0, help="begin no run after so many")
    parser.add_argument("--runs", type=int, default=10**9, help="make no more than so many")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--rows", nargs="+", default=[row for row in PRESETS if not row.startswith("miniimagenet/")])
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}", flush=True)
    scratch = Path(tempfile.mkdtemp(prefix="autorecall-torture-"))
    torture = Torture(scratch, chosen.seed, chosen.rows)
    deadline = time.monotonic() + 60 * chosen.minutes
    for _ in range(chosen.runs):
        torture.one_run()
        if time.monotonic() > deadline:
            break
    tally = torture.tally
    print("\n".join([*tally.differences, *tally.lost, str(tally)]))
    if tally.differences or tally.lost or torture.left_out:
        return 1
    shutil.rmtree(scratch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
