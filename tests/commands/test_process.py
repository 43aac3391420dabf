"""The program keeps freed memory, and its threads do not wait for long, unless the user has said otherwise."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from autorecall.commands.process import SPINS, WAITS, keep_freed_memory, wait_briefly

# Memory that is freed and wanted again, and the pages that the system has to clear for it.
CODE = """
import resource, sys
from autorecall.commands.process import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
def use():
    for _ in range(20):
        parts = [bytearray(2_000_000) for _ in range(4)]
        del parts
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only glibc has the setting")
def test_memory_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(ctypes.CDLL(None), "mallopt"):
        pytest.skip("only glibc has the setting")
    for name in ("GLIBC_TUNABLES", "MALLOC_ARENA_MAX"):
        monkeypatch.delenv(name, raising=False)
    faults = {
        how: int(subprocess.run([sys.executable, "-c", CODE, how], capture_output=True, check=True).stdout)
        for how in ("usual", "kept")
    }
    assert faults["kept"] < 100 < faults["usual"]


@pytest.mark.parametrize("name", ["GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_"])
def test_what_the_user_has_set_is_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    assert not keep_freed_memory()


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {})
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert not keep_freed_memory()


# What OpenMP says of its settings when it is loaded, here after the program has begun.
LOADING = """
import contextlib, ctypes, sys
from autorecall import cli
sys.argv = ["autorecall", "--version"]
with contextlib.suppress(SystemExit):
    cli.main()
assert "torch" not in sys.modules
ctypes.CDLL(LIBRARY)
"""


@pytest.mark.parametrize("set_by_user", [None, "7"])
def test_threads_of_the_program_wait_as_long_as_it_says_or_the_user(
    set_by_user: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = next((Path(torch.__file__).parent / "lib").glob("libgomp*"), None)
    if library is None:
        pytest.skip("this torch does not come with GNU's OpenMP")
    for name in WAITS:
        monkeypatch.delenv(name, raising=False)
    if set_by_user is not None:
        monkeypatch.setenv("GOMP_SPINCOUNT", set_by_user)
    monkeypatch.setenv("OMP_DISPLAY_ENV", "verbose")
    code = LOADING.replace("LIBRARY", repr(str(library)))
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stderr
    assert f"GOMP_SPINCOUNT = '{set_by_user or SPINS}'" in said


@pytest.mark.parametrize("name", WAITS)
def test_how_the_user_wants_threads_to_wait_is_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {name: "passive"})
    assert not wait_briefly()
    assert os.environ == {name: "passive"}
