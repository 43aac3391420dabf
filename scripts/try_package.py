"""Builds sdist and wheel, installs the wheel into a new environment, and tries what people would: make test-package.

The wheel is built from the sdist, so that a file which is missing there is noticed. The new environment sees the
dependencies of this one, but not its autorecall. Nothing is left behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "src")
C_FILES = ("src/autorecall/recall/_kernels.c", "src/autorecall/recall/_winograd.c")
IN_SDIST = ("LICENSE", "README.md", "pyproject.toml", *C_FILES, "src/autorecall/__init__.pyi")
IN_WHEEL = ("autorecall/py.typed", "autorecall/__init__.pyi", "autorecall/__main__.py", "autorecall/data/mnist5k.npz")
BUILD = "import sys, setuptools.build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"
LOOK = "import autorecall, autorecall.recall.kernels as k; print(autorecall.__file__, bool(k._kernels()))"


def main() -> None:
    """Build, look inside, install, try."""
    with TemporaryDirectory() as folder:
        place = Path(folder)
        sdist, wheel = build(place)
        python = install(place, wheel)
        attempt(place, python)
    print(f"{sdist.name} and {wheel.name}: built, installed and tried")


def build(place: Path) -> tuple[Path, Path]:
    """The sdist from a copy of the sources, the wheel from the sdist."""
    copy = place / "copy"
    copy.mkdir()
    listed = said(["git", "ls-files", *SOURCES], ROOT).splitlines()
    for name in listed:
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    sdist = place / said([sys.executable, "-c", BUILD, "build_sdist", str(place)], copy).splitlines()[-1]
    with tarfile.open(sdist) as archive:
        names = [name.split("/", 1)[-1] for name in archive.getnames()]
        check_all(IN_SDIST, names, sdist)
        archive.extractall(place / "unpacked", filter="data")
    (unpacked,) = (place / "unpacked").iterdir()
    wheel = place / said([sys.executable, "-c", BUILD, "build_wheel", str(place)], unpacked).splitlines()[-1]
    with zipfile.ZipFile(wheel) as package:
        check_all(IN_WHEEL, package.namelist(), wheel)
        foreign = [name for name in package.namelist() if not name.startswith("autorecall")]
        check(not foreign, f"{wheel.name} holds {foreign}")
    return sdist, wheel


def install(place: Path, wheel: Path) -> Path:
    """The Python of a new environment with the wheel."""
    new = place / "environment"
    venv.create(new, with_pip=False)
    python = new / "bin" / "python"
    site = Path(said([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], place).strip())
    # A line in a .pth file adds a folder, but does not follow the .pth files in it: an editable autorecall stays out.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--quiet", "--disable-pip-version-check"]
    said([*pip, "install", "--no-deps", "--no-index", str(wheel)], place)
    return python


def attempt(place: Path, python: Path) -> None:
    """The package is the one installed, with its kernels if there is a compiler; the program runs and shows a run."""
    version = said([str(python), "-c", "import autorecall; print(autorecall.__version__)"], place).strip()
    where, kernels = said([str(python), "-c", LOOK], place).split()
    check(Path(where).is_relative_to(place), f"{where} is not the installed package")
    if kernels != "True":
        print("without C kernels: there was no compiler")
    for program in ([str(python), "-m", "autorecall"], [str(python.with_name("autorecall"))]):
        check(said([*program, "--version"], place) == f"autorecall {version}\n", f"{program} has another version")
    told = said([str(python.with_name("autorecall")), "run", "mnist/naive", "--fraction", "0.05"], place)
    check("accuracy" in told, told)
    check("naive" in said([str(python), "-m", "autorecall", "show", "runs"], place), "show does not show the run")


def said(command: list[str], cwd: Path) -> str:
    """What a command printed; what it complained of, if it failed."""
    alone = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=alone)
    check(done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def check_all(wanted: tuple[str, ...], names: list[str], archive: Path) -> None:
    """Every file that must be in an archive is."""
    for name in wanted:
        check(name in names, f"{archive.name} has no {name}")


def check(fine: bool, otherwise: str) -> None:
    """End with a sentence, unless all is fine."""
    if not fine:
        sys.exit(otherwise)


if __name__ == "__main__":
    main()
