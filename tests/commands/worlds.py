"""What a command did and left, shared by the tests of commands."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from autorecall.config import RunConfig
from autorecall.presets import PRESETS, paper_steps
from autorecall.runs.result import MemoryCount, Result, Seconds, as_json
from autorecall.storage.formats import stamped
from autorecall.storage.schema import to_json

FILES = {"config.json", "curves.png", "history.csv", "model.safetensors", "result.json"}
MAIN = "from autorecall.cli import main; main()"


@dataclass(frozen=True)
class Said:
    """What a command did."""

    code: int
    out: str
    err: str


Say = Callable[..., Said]


def refused(said: Said, *parts: str) -> None:
    """Exit code 2 and one sentence for a person, on stderr."""
    assert (said.code, said.out.strip()) == (2, "")
    assert said.err.startswith("autorecall: ")
    assert said.err.count("\n") == 1
    for part in parts:
        assert part in said.err


def files(folder: Path) -> set[str]:
    """Those below a folder, by their paths."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def times(folder: Path) -> dict[Path, int]:
    """When each of them was last written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def read(path: Path) -> dict[str, object]:
    """A JSON file, but for the seconds that a run took."""
    values: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
    values.pop("seconds", None)
    return values


def program(*words: str, cwd: Path | None = None, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """The program as a process of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    command = [sys.executable, "-u", "-c", MAIN, *words]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, cwd=cwd, env=environment)


def without_reader(*words: str) -> tuple[int, str]:
    """The program with a reader that has gone away: its exit code, and what it says then."""
    reading, writing = os.pipe()
    os.close(reading)
    done = program(*words, stdout=writing)
    os.close(writing)
    return done.returncode, done.stderr


def result(preset: str, seed: int, accuracy: float = 50.0, lost: float | None = 20.0) -> Result:
    """What a run on all images of the paper found, made up."""
    steps = paper_steps(PRESETS[preset].config) if preset in PRESETS else None
    return Result(
        preset=preset,
        seed=seed,
        split="test",
        accuracy=accuracy,
        forgetting=lost,
        accuracy_matrix=[[accuracy]],
        memory=MemoryCount(images=0, image_mb=0.0, parameters=478_410, parameter_mb=1.91364),
        steps=steps or 500,
        seconds=Seconds(train=7.0, evaluate=1.5),
        versions={},
        machine={},
    )


def store(folder: Path, found: Result, config: RunConfig | None = None) -> Path:
    """A run folder, made by hand."""
    config = dataclasses.replace(config or PRESETS[found.preset].config, seed=found.seed)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(stamped({"preset": found.preset} | to_json(config))))
    (folder / "result.json").write_text(json.dumps(as_json(found)))
    return folder
