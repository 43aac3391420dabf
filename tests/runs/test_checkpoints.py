"""The last two checkpoints of a run, whatever becomes of them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from autorecall.errors import StoppedError, WriteError
from autorecall.runs.checkpoints import Checkpoints

from .worlds import full_disk, names


def unexpected(sentence: str) -> None:
    raise AssertionError(sentence)


def step_in(kept: Checkpoints, told: Callable[[str], None] = unexpected) -> object:
    found = kept.read(told)
    if found is None:
        return None
    path, state = found
    assert path.parent == kept.folder
    return state["step"]


@pytest.fixture
def kept(tmp_path: Path) -> Checkpoints:
    """Those of steps 1 and 2."""
    kept = Checkpoints(tmp_path)
    for step in (1, 2):
        kept.write(step, {"step": step})
    return kept


def test_the_last_two_are_kept_and_the_last_is_read(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path)
    assert kept.read(unexpected) is None
    assert not kept.any()
    for step in (1, 9, 10, 100):
        kept.write(step, {"step": step})
        assert step_in(kept) == step
        assert kept.any()
    assert names(kept.folder) == {"step-000000010.safetensors", "step-000000100.safetensors"}
    for _ in range(2):  # what is not there is removed as well
        kept.remove()
        assert names(tmp_path) == set()


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_the_one_before_is_used_where_the_last_is_damaged(kept: Checkpoints, damage: str) -> None:
    told: list[str] = []
    last = kept.folder / "step-000000002.safetensors"
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    match damage:
        case "cut":
            os.truncate(last, 10)
        case "flipped":
            last.write_bytes(content)
        case _:
            last.unlink()
    assert step_in(kept, told.append) == 1
    assert told == ([] if damage == "gone" else [f"the checkpoint {last} is damaged and was skipped"])
    kept.write(2, {"step": "again"})
    assert step_in(kept) == "again"


def test_all_damaged_is_said_of_each_and_is_no_end(tmp_path: Path) -> None:
    kept, told = Checkpoints(tmp_path), list[str]()
    for step in (7, 8):
        kept.write(step, {"step": step})
        os.truncate(kept.folder / f"step-{step:09}.safetensors", 3)
    assert kept.read(told.append) is None
    assert [sentence.split(" is ")[1] for sentence in told[:2]] == ["damaged and was skipped"] * 2
    assert told[2:] == [f"no checkpoint in {kept.folder} is intact; the run starts over"]
    # Those to come have lower numbers, and must be neither removed nor passed over.
    for step in (1, 2, 3):
        kept.write(step, {"step": step})
        assert step_in(kept) == step


@pytest.mark.parametrize("place", ["os.fsync", "pathlib.Path.replace", "pathlib.Path.unlink"])
def test_a_full_disk_leaves_the_last_ones_usable(
    kept: Checkpoints, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(place, full_disk)
        with pytest.raises(WriteError, match=r"^cannot write .*: No space left on device; check the folder and the"):
            kept.write(3, {"step": 3})
    assert step_in(kept) == (3 if place == "pathlib.Path.unlink" else 2)


def test_a_disk_that_is_full_from_the_start_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "mkdir", full_disk)
    with pytest.raises(WriteError, match=r"^cannot write to .*checkpoints: No space left on device"):
        Checkpoints(tmp_path).write(1, {"step": 1})


def test_a_run_folder_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="No such file or directory"):
        Checkpoints(tmp_path / "gone").write(1, {"step": 1})
    assert names(tmp_path) == set()


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EMFILE])
@pytest.mark.parametrize("place", ["os.open", "pathlib.Path.iterdir"])
def test_a_checkpoint_that_cannot_be_read_this_time_is_not_taken_for_a_damaged_one(
    kept: Checkpoints, monkeypatch: pytest.MonkeyPatch, place: str, code: int
) -> None:
    found = names(kept.folder)

    def failing(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(place, failing)
        with pytest.raises(StoppedError, match=rf"^cannot read .*: {os.strerror(code)}; .* or --fresh starts over$"):
            kept.read(unexpected)
        assert kept.any()  # nobody knows
        kept.remove_leftovers()
    assert names(kept.folder) == found
    assert step_in(kept) == 2


def test_only_files_of_ours_are_removed(kept: Checkpoints) -> None:
    others = {"mymodel.pt", ".notes.tmp", "step-one.safetensors", ".step-1.safetensors.tmp", "step-1.damaged.txt"}
    left = ".step-000000003.safetensors.77.tmp"
    for name in {*others, left, "step-000000002.damaged"}:
        (kept.folder / name).touch()
    found = names(kept.folder)
    kept.remove_leftovers()
    assert names(kept.folder) == found - {left}
    kept.remove()
    assert names(kept.folder) == others
    assert not kept.any()
