"""What those who depend on the package rely on: one version, `python -m autorecall`, dependencies that are named."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import autorecall

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MODULES = {"pillow": "PIL", "avalanche-lib": "avalanche"}  # where a module has another name than its package


def test_python_dash_m_is_the_program() -> None:
    said = subprocess.run([sys.executable, "-m", "autorecall", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == f"autorecall {autorecall.__version__}\n"


def test_there_is_one_version() -> None:
    assert "version" in PROJECT["project"]["dynamic"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "autorecall.__version__"}
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert cited is not None
    assert cited[1] == autorecall.__version__


def test_everything_imported_is_a_dependency() -> None:
    project = PROJECT["project"]
    extras = [named for extra, named in project["optional-dependencies"].items() if extra not in ("dev", "docs")]
    packages = [re.split("[<>=]", package)[0].lower() for package in sum(extras, start=project["dependencies"])]
    mammoth = "models"  # a program, not a package: the integration is copied into it
    comes_with_tyro = "docstring_parser"  # and is done without if it no longer does
    modules = {MODULES.get(package, package).replace("-", "_") for package in packages}
    known = {"autorecall", mammoth, comes_with_tyro, *modules}
    assert {name for name in imported(ROOT / "src") if name not in sys.stdlib_module_names} <= known


def imported(folder: Path) -> set[str]:
    """The first parts of the names of all modules that are imported from outside the package."""
    names: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names.add(node.module.split(".")[0])
    return names


def test_the_lower_bounds_that_were_tried_are_those_of_the_package() -> None:
    tried = dict(
        line.split("==")
        for line in (ROOT / "requirements-oldest.lock").read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    )
    for dependency in PROJECT["project"]["dependencies"]:
        name, bound = re.match(r"([a-z0-9-]+)>=([\d.]+)", dependency).groups()  # type: ignore[union-attr]
        if name != "torch":  # its oldest builds for processors alone cannot be had from the registry
            assert re.fullmatch(rf"{re.escape(bound)}(\.0)*", tried[name]), (name, bound, tried[name])
