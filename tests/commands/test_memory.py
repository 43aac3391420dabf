"""The program keeps freed memory, unless the user has said otherwise."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from autorecall.commands.memory import keep_freed_memory

# Memory that is freed and wanted again, and the pages that the system has to clear for it.
CODE = """
import resource, sys
from autorecall.commands.memory import keep_freed_memory
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
