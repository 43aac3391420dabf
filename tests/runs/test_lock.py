"""One owner per folder, whatever becomes of the others."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from autorecall.errors import AutorecallError, ConfigError, WriteError
from autorecall.runs import lock as locks
from autorecall.runs.lock import Lock, locked

from .worlds import full_disk, names

OWNER = f"{os.getpid()} on {platform.node()}"

# Takes the folder so many times, however often it is refused, and notes what no other may see at the same time.
CONTENDER = """
import re, sys
from pathlib import Path
from autorecall.errors import AutorecallError
from autorecall.runs.lock import locked
folder, fresh, times = Path(sys.argv[1]), sys.argv[2] == "fresh", int(sys.argv[3])
inside = folder.with_name("inside")
print("ready", flush=True)
input()
while times:
    try:
        with locked(folder, fresh) as lock:
            inside.touch(exist_ok=False)
            (folder / "mine").touch()
            lock.check()
            inside.unlink()
            times -= 1
    except AutorecallError as error:  # in use, or moved aside between making and opening it
        assert re.search("in use by process|cannot create the folder|permission denied|moved away", str(error)), error
"""


def test_a_folder_is_held_once_and_let_go(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for _ in range(2):
        with locked(folder):
            assert (folder / ".lock").read_text() == f"{OWNER}\n"
            with pytest.raises(AutorecallError, match=f"^{folder} is in use by process {OWNER}; wait for it"):
                Lock(folder)
        assert names(folder) == set()


def test_a_folder_is_let_go_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        raise ZeroDivisionError
    assert names(tmp_path) == set()


@pytest.mark.parametrize("content", ["", "999999999\n", "1\n", "nonsense"])
def test_a_lock_file_that_nobody_holds_is_taken_over(tmp_path: Path, content: str) -> None:
    """Also where its process id belongs to somebody else by now."""
    (tmp_path / ".lock").write_text(content)
    with locked(tmp_path):
        assert (tmp_path / ".lock").read_text() == f"{OWNER}\n"
    assert names(tmp_path) == set()


def test_a_lock_that_was_deleted_between_opening_and_locking_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = fcntl.flock, list[int]()

    def late(file: int, how: int) -> None:
        calls.append(file)
        if len(calls) == 1:
            (tmp_path / ".lock").unlink()  # its last owner has just let go
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with locked(tmp_path) as lock:
        lock.check()
        assert len(calls) == 2


def test_a_full_disk_leaves_nobody_locked_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full_disk)
        with pytest.raises(WriteError, match=r"^cannot write .*lock: No space left on device; check the folder and"):
            Lock(tmp_path)
    assert names(tmp_path) == set()
    Lock(tmp_path).release()


def test_a_folder_that_was_removed_or_replaced_is_no_longer_held(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with locked(folder) as lock:
        (folder / ".lock").unlink()
        with pytest.raises(WriteError, match="it was removed or moved"):
            lock.check()
        with locked(folder) as other:
            with pytest.raises(WriteError, match="it was removed or moved"):
                lock.check()
            other.check()


@pytest.mark.parametrize("how", ["usual", "fresh"])
def test_processes_that_fight_for_a_folder_hold_it_in_turns(tmp_path: Path, how: str) -> None:
    times = 30
    command = [sys.executable, "-c", CONTENDER, str(tmp_path / "run"), how, str(times)]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(3)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.communicate()[1] for process in processes] == ["", "", ""]
    folders = names(tmp_path)
    # Afresh, each moved the one before aside, and none was lost.
    assert len(folders) == (3 * times if how == "fresh" else 1)
    # One who opened it at the very moment may leave an empty lock file in a folder that was moved aside.
    assert all(names(tmp_path / folder) - {".lock"} == {"mine"} for folder in folders)


@pytest.mark.parametrize("there", [False, True])
def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path, there: bool) -> None:
    folder, victim = tmp_path / "run", tmp_path / ("victim" if there else "gone/victim")
    folder.mkdir()
    if there:
        victim.write_text("precious")
    (folder / ".lock").symlink_to(victim)
    with pytest.raises(WriteError, match=r"^cannot write .*lock: Too many levels of symbolic links"):
        Lock(folder)
    assert not there or victim.read_text() == "precious"


def test_a_folder_that_is_moved_away_over_and_over_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(os, "open", gone)
    with pytest.raises(AutorecallError, match="keeps being moved away"):
        Lock(tmp_path)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK])
def test_where_there_are_no_locks_that_is_said_and_nothing_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def lacking(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", lacking)
    told: list[str] = []
    with locked(tmp_path, told=told.append) as lock:
        lock.check()
    assert told == [f"the file system of {tmp_path} has no locks, so do not start a second run there at the same time"]
    assert names(tmp_path) == set()


def test_another_error_of_the_lock_leaves_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    descriptor = os.dup(0)  # the lowest that is free, and so again if none was left open
    os.close(descriptor)
    monkeypatch.setattr(fcntl, "flock", failing)
    with pytest.raises(WriteError, match="Input/output error"):
        Lock(tmp_path)
    assert os.dup(0) == descriptor
    os.close(descriptor)


def test_a_system_without_locks_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "SUPPORTED", False)
    with pytest.raises(ConfigError, match=r"^run folders need Linux or macOS"):
        Lock(tmp_path / "run")
    assert names(tmp_path) == set()
