from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autorecall.data import DATASETS, load
from autorecall.data.locate import cache_folder, places

from .conftest import Made, Refused


def test_unknown_name(refused: Refused) -> None:
    with refused("there is no dataset 'mnst'; choose one of mnist, mnist-full, fashion-mnist, cifar10, miniimagenet"):
        load("mnst")


@pytest.mark.parametrize("name", [name for name in DATASETS if name != "folder"])
def test_an_image_size_that_would_do_nothing(name: str, refused: Refused) -> None:
    with refused(f"image_size is 32, but {name} has a size of its own"):
        load(name, image_size=32)


def test_a_folder_that_would_do_nothing(tmp_path: Path, refused: Refused) -> None:
    with refused("mnist comes with the package", str(tmp_path), "mnist-full"):
        load("mnist", tmp_path)


def test_folder_needs_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    monkeypatch.setenv("AUTORECALL_DATA", str(tmp_path))
    with refused("the dataset folder needs a folder"):
        load("folder")


@pytest.mark.parametrize("name", [name for name in DATASETS if name not in ("mnist", "npz")])
def test_a_folder_that_is_not_there(name: str, tmp_path: Path, refused: Refused) -> None:
    with refused(str(tmp_path / "gone"), "does not exist"):
        load(name, tmp_path / "gone")
    (tmp_path / "file").write_text("")
    with refused(str(tmp_path / "file"), "does not exist"):
        load(name, tmp_path / "file")


@pytest.mark.parametrize("name", [name for name in DATASETS if name != "mnist"])
def test_an_error_of_the_disk(name: str, tmp_path: Path, refused: Refused) -> None:
    with refused("cannot be read (File name too long)"):
        load(name, tmp_path / ("x" * 300))


def test_the_folder_asked_for_comes_before_the_variable_and_the_cache(
    small_cifar: Made, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, elsewhere = small_cifar.folder.parent, tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert places(None) == (cache,)
    assert places(elsewhere) == (elsewhere, cache)
    monkeypatch.setenv("AUTORECALL_DATA", str(given))
    assert places(None) == (given, cache)
    assert places(elsewhere) == (elsewhere, cache)
    assert len(load("cifar10").test) == 20


def test_what_the_folder_lacks_is_taken_from_the_cache(small_cifar: Made, tmp_path: Path, cache: Path) -> None:
    cache.mkdir()
    small_cifar.folder.rename(cache / "cifar-10-batches-bin")
    (tmp_path / "empty").mkdir()
    assert len(load("cifar10", tmp_path / "empty").test) == 20


def test_a_half_copied_dataset_is_reported_and_not_passed_over(
    small_cifar: Made, tmp_path: Path, cache: Path, refused: Refused
) -> None:
    half = tmp_path / "half" / "cifar-10-batches-bin"
    half.mkdir(parents=True)
    (half / "data_batch_1.bin").write_bytes((small_cifar.folder / "data_batch_1.bin").read_bytes())
    cache.mkdir()
    small_cifar.folder.rename(cache / "cifar-10-batches-bin")
    with refused(str(half / "data_batch_2.bin"), "is missing"):
        load("cifar10", tmp_path / "half")


def test_the_cache_of_the_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AUTORECALL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder().name == "autorecall"


@pytest.mark.parametrize("name", ["mnist-full", "cifar10"])
def test_loading_twice_gives_the_same(name: str, small_mnist: Made, small_cifar: Made) -> None:
    folder = small_mnist.folder.parent
    assert load(name, folder).fingerprint() == load(name, folder).fingerprint()


def test_data_needs_no_torch() -> None:
    code = "import sys, autorecall.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
