"""What `import autorecall` offers, and what it does not load."""

from __future__ import annotations

import subprocess
import sys

import pytest

import autorecall

HEAVY = ("torch", "safetensors", "numpy", "scipy", "matplotlib", "tyro", "rich", "PIL", "pooch", "jinja2")


NAMES = sorted(vars(autorecall)["__all__"])


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_can_be_used(name: str) -> None:
    assert getattr(autorecall, name) is not None


def test_the_public_names_are_shown_by_dir() -> None:
    assert set(NAMES) <= set(dir(autorecall))
    assert "ARM" in NAMES


def test_a_star_import_brings_the_public_names_and_no_others() -> None:
    names: dict[str, object] = {}
    exec("from autorecall import *", names)
    assert sorted(name for name in names if name != "__builtins__") == NAMES


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="autorecall attribute nothing"):
        getattr(autorecall, "nothing")  # noqa: B009  type checkers know that it is not there


@pytest.mark.parametrize(
    "statement",
    [
        "import autorecall",
        "import autorecall.cli",
        "import autorecall.cli; assert autorecall.cli.dispatch(['--help']) == 0",
        "import autorecall.cli; assert autorecall.cli.dispatch(['nothing']) == 2",
        "import autorecall.cli; assert autorecall.cli.dispatch(['--version']) == 0",
    ],
)
def test_nothing_heavy_is_loaded_before_a_command_needs_it(statement: str) -> None:
    look = f"import sys; print('loaded:', [name for name in {HEAVY} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", f"{statement}; {look}"], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "loaded: []"


def test_the_look_above_does_find_what_is_loaded() -> None:
    look = f"import sys; print([name for name in {HEAVY} if name in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", f"from autorecall import Dataset; {look}"], capture_output=True, text=True, check=True
    )
    assert "numpy" in found.stdout
