"""Whatever becomes of the files of a run: it ends as it would have, or one sentence says why not."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import shutil
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from autorecall import LearnerConfig, NaiveConfig, Observer, RunConfig, run
from autorecall.data import Dataset
from autorecall.errors import AutorecallError, InterruptedRunError
from autorecall.learners.base import methods
from autorecall.storage.state_file import read_state, write_state

from .worlds import CONFIGS, ODD, changed, examples, fields, no_hang, one_sentence, say, small, tiny

NAME = "naive+hidden=4+batch_size=4+split=val"  # of the folder, by what differs from the preset
LATER = 6  # the step after which runs are interrupted, in the second of two tasks of five
FEW = {"recalled_images": 5, "ascent_steps": 2, "kept_images": 6, "steps_per_batch": 2, "groups": 1, "iterations": 2}
KINDS = ["flip", "cut", "grow", "swap", "remove", "pipe", "folder", "link", "dangling", "loop"]


def interrupted(config: RunConfig, data: Dataset, folder: Path) -> Path:
    answers = iter([False] * LATER + [True])
    with pytest.raises(InterruptedRunError):
        run("mnist/naive", config, data, folder, stop=answers.__next__)
    return folder


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory, data: Dataset) -> tuple[Path, Path]:
    """A run that was interrupted, and the same one to its end."""
    folder = tmp_path_factory.mktemp("half")
    config = small(NaiveConfig(), checkpoint_seconds=0.0)
    run("mnist/naive", config, data, folder / "whole")
    return interrupted(config, data, folder / "half"), folder / "whole"


def spoil(path: Path, drawn: st.DataObject, place: Path) -> str:
    """Do something to a file, and say what."""
    content = bytearray(path.read_bytes())
    where = drawn.draw(st.integers(0, len(content) - 1))
    kind = drawn.draw(st.sampled_from([*KINDS, *(["value"] * 5 if path.suffix == ".json" else [])]))
    match kind:
        case "flip":
            content[where] ^= 1 << drawn.draw(st.integers(0, 7))
        case "cut":
            del content[where:]
        case "grow":
            content[where:where] = drawn.draw(st.binary(max_size=40))
        case "swap":
            content = bytearray(b"{" * 50_000 if drawn.draw(st.booleans()) else b'{"preset": 1}')
        case "value":
            values = json.loads(content)
            named = drawn.draw(st.sampled_from(fields(values)))
            value = drawn.draw(ODD | st.sampled_from([float("inf"), float("nan"), [[1.0, float("inf")]], [[]]]))
            content = bytearray(json.dumps(changed(values, named, value, drawn.draw(st.booleans()))).encode())
    path.unlink()
    match kind:
        case "remove":
            pass
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "link":
            path.symlink_to(place / "precious")
        case "dangling":
            path.symlink_to(place / "nowhere")
        case "loop":
            path.symlink_to(path)
        case _:
            path.write_bytes(content)
    return kind


@examples(30)
@given(st.data())
def test_any_damage_is_survived_or_named(
    place: Path, capsys: pytest.CaptureFixture[str], half: tuple[Path, Path], drawn: st.DataObject
) -> None:
    """Of any file of a run, finished or not: then the same command gives the same result, or one sentence."""
    finished = drawn.draw(st.booleans())
    folder = place / "out" / "mnist" / NAME / "seed-0"
    shutil.rmtree(place / "out", ignore_errors=True)
    shutil.copytree(half[1] if finished else half[0], folder)
    (place / "given.json").write_text(json.dumps(CONFIGS[0]))
    (place / "precious").write_text("not ours")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    damaged = drawn.draw(st.lists(st.sampled_from(files), min_size=1, max_size=3, unique=True))
    kinds = {path: spoil(path, drawn, place) for path in damaged}
    capsys.readouterr()
    assert say("show", "out") in (0, 2)
    printed = capsys.readouterr()
    assert printed.err.replace("\n", "").isprintable()
    code = say("run", "--config", "given.json", "--out", "out")
    printed = capsys.readouterr()
    assert (place / "precious").read_text() == "not ours"
    assert code in (0, 2)
    changed_bytes = {"flip", "cut", "grow", "swap", "remove"}
    if code:
        one_sentence(printed.err.splitlines(keepends=True)[-1])
        # Only a finished run can be spoilt, or one with a config that cannot be known or with files that none makes.
        assert finished or folder / "config.json" in damaged or not changed_bytes >= set(kinds.values())
    elif not finished:
        assert without_seconds(folder / "result.json") == without_seconds(half[1] / "result.json")
        rows, usual = (((of / "history.csv").read_bytes().splitlines()) for of in (folder, half[1]))
        if rows != usual:  # both copies were damaged, and so it was said
            assert [path.name for path in damaged].count("history.csv") == 2
            assert "its rows begin where the run resumes" in printed.err
            assert rows in [[usual[0], *usual[step + 1 :]] for step in (LATER - 1, LATER)]
    assert not list(folder.rglob("*.tmp"))


def without_seconds(path: Path) -> object:
    values = json.loads(path.read_text())
    del values["seconds"]
    return values


# Checkpoints with a right checksum and wrong values


class Quiet(Observer):
    """Told of other versions and damaged files, as it may be."""

    def warned(self, sentence: str) -> None:
        one_sentence(f"autorecall: {sentence}\n")


def few(method: str) -> LearnerConfig:
    """A method that is quick."""
    config = methods()[method]()
    return dataclasses.replace(config, **{name: count for name, count in FEW.items() if hasattr(config, name)})


@cache
def checkpoint_of(method: str, folder: Path) -> Path:
    return interrupted(small(few(method)), tiny(), folder / method)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


def leaves(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Where there is something in a state, whole parts included."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, inner in items for found in ((*path, key), *leaves(inner, (*path, key)))]


def forged(value: object, drawn: st.DataObject) -> object:
    """Another value for the same place."""
    if not isinstance(value, Tensor) or drawn.draw(st.integers(0, 3)) == 0:
        return drawn.draw(ODD | st.sampled_from([torch.zeros(0), torch.ones(2, 3), torch.tensor(float("nan"))]))
    match drawn.draw(st.sampled_from(["fill", "kind", "part", "more", "flat", "empty", "one"])):
        case "fill":
            number = drawn.draw(st.sampled_from([-1, 0, 1, 255, 1e30, float("nan"), float("inf"), -(2**40)]))
            if not value.is_floating_point():
                return torch.full_like(value, 0) + (int(number) % 256 if abs(number) < 2**62 else 7)
            return torch.full_like(value, number)
        case "kind":
            return value.to(
                drawn.draw(st.sampled_from([torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool]))
            )
        case "part":
            return value[:-1] if value.dim() else value.reshape(1)
        case "more":
            return torch.cat([value, value]) if value.dim() else value.expand(3)
        case "flat":
            return value.flatten()
        case "empty":
            return value.new_empty(0)
        case _:
            return value.flatten()[:1].reshape(()) if value.numel() else torch.tensor(1)


def replaced(state: object, path: tuple[str | int, ...], drawn: st.DataObject) -> None:
    inner = state
    for key in path[:-1]:
        inner = inner[key]  # type: ignore[index]
    if drawn.draw(st.integers(0, 5)) == 0:
        del inner[path[-1]]  # type: ignore[attr-defined]
    else:
        inner[path[-1]] = forged(inner[path[-1]], drawn)  # type: ignore[index]


@pytest.mark.parametrize("method", sorted(methods()))
@examples(12)
@given(drawn=st.data())
def test_any_forged_checkpoint_is_resumed_or_refused(
    tmp_path_factory: pytest.TempPathFactory, checkpoints: Path, method: str, drawn: st.DataObject
) -> None:
    """A forger can set any weight; but nothing falls over it, and a number that is none is not taken over."""
    folder = shutil.copytree(checkpoint_of(method, checkpoints), tmp_path_factory.mktemp("run") / "run")
    path = max((folder / "checkpoints").glob("step-*"))
    state = copy.deepcopy(dict(read_state(path)))
    for _ in range(drawn.draw(st.integers(1, 2))):
        found = leaves(state)
        replaced(state, drawn.draw(st.sampled_from(found)), drawn)
    write_state(path, state)
    with no_hang():
        try:
            result = run("mnist/naive", small(few(method)), tiny(), folder, Quiet())
            assert 0 <= result.accuracy <= 100
        except AutorecallError as error:
            one_sentence(f"autorecall: {error}\n")
    shutil.rmtree(folder)
