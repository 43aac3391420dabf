from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from autorecall.data import cifar10, download, load, mnist

from .conftest import Made, Refused, Server

PATH = "/cifar-10-binary.tar.gz"


def tar_of(folder: Path, odd: tuple[tarfile.TarInfo, ...] = (), prefix: str = "cifar-10-batches-bin/") -> bytes:
    """The files of a folder as the official archive holds them, after some odd members."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for info in odd:
            tar.addfile(info, io.BytesIO(b"x" * info.size))
        for path in sorted(folder.iterdir()):
            info = tarfile.TarInfo(prefix + path.name)
            info.size = path.stat().st_size
            tar.addfile(info, io.BytesIO(path.read_bytes()))
    return content.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, size
    return info


@pytest.fixture
def offered(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server in place of the one of CIFAR-10."""
    monkeypatch.setattr(cifar10, "URL", server.address + PATH)
    return server


def offer(server: Server, archive: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    server.files[PATH] = archive
    monkeypatch.setattr(cifar10, "SHA256", hashlib.sha256(archive).hexdigest())


def remains(cache: Path) -> list[str]:
    return sorted(str(path.relative_to(cache)) for path in cache.rglob("*")) if cache.exists() else []


FILES = [f"cifar-10-batches-bin/{name}.bin" for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch")]


@pytest.mark.parametrize("progress", [True, False])
def test_cifar10_is_downloaded_once_and_nothing_but_its_files_is_kept(
    progress: bool,
    small_cifar: Made,
    offered: Server,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (small_cifar.folder / "batches.meta.txt").write_text("\n".join("abcdefghij"))
    (small_cifar.folder / "readme.html").write_text("not needed")
    offer(offered, tar_of(small_cifar.folder), monkeypatch)
    data = load("cifar10", progress=progress)
    assert data.classes == tuple("abcdefghij")
    assert data.fingerprint() == load("cifar10", small_cifar.folder).fingerprint()
    assert remains(cache) == sorted(["cifar-10-batches-bin", "cifar-10-batches-bin/batches.meta.txt", *FILES])
    assert load("cifar10").fingerprint() == data.fingerprint()
    assert offered.asked == [PATH]
    assert capfd.readouterr() == ("", "")  # stderr is no terminal here, so no bar


def test_mnist_is_downloaded_from_the_second_mirror_where_the_first_fails(
    small_mnist: Made, server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = {f"{path.name}.gz": gzip.compress(path.read_bytes()) for path in small_mnist.folder.iterdir()}
    monkeypatch.setattr(mnist, "SHA256", {name: hashlib.sha256(packed[name]).hexdigest() for name in mnist.SHA256})
    monkeypatch.setattr(mnist, "MIRRORS", (server.address + "/first/", server.address + "/second/"))
    server.files = {f"/second/{name}": content for name, content in packed.items()}
    server.files["/first/t10k-labels-idx1-ubyte.gz"] = b"something else"
    data = load("mnist-full")
    assert data.fingerprint() == load("mnist-full", small_mnist.folder).fingerprint()
    assert remains(cache) == sorted(["mnist", *(f"mnist/{name}" for name in packed)])


def test_mnist_is_all_or_nothing(
    small_mnist: Made, server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    packed = {f"{path.name}.gz": gzip.compress(path.read_bytes()) for path in small_mnist.folder.iterdir()}
    monkeypatch.setattr(mnist, "SHA256", {name: hashlib.sha256(packed[name]).hexdigest() for name in mnist.SHA256})
    monkeypatch.setattr(mnist, "MIRRORS", (server.address + "/",))
    server.files = {f"/{name}": content for name, content in packed.items() if name != "t10k-labels-idx1-ubyte.gz"}
    with refused(str(cache / "mnist"), "the server answered 404", "put the four files", "t10k-labels-idx1-ubyte.gz"):
        load("mnist-full")
    assert len(server.asked) == 4
    assert remains(cache) == []


def test_wrong_checksum(
    small_cifar: Made, offered: Server, cache: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    offer(offered, tar_of(small_cifar.folder), monkeypatch)
    monkeypatch.setattr(cifar10, "SHA256", "0" * 64)
    with refused(str(cache / "cifar-10-batches-bin"), "wrong SHA-256", f"put the .bin files from {cifar10.URL} into"):
        load("cifar10")
    assert remains(cache) == []


def test_not_on_the_server(offered: Server, cache: Path, refused: Refused) -> None:
    with refused(cifar10.URL, "the server answered 404"):
        load("cifar10")
    assert remains(cache) == []


@pytest.mark.parametrize("name", ["cifar10", "mnist-full"])
def test_no_connection(name: str, cache: Path, refused: Refused) -> None:
    with refused("could not be downloaded", "no connection", "by hand", str(cache)):
        load(name)
    assert remains(cache) == []


def test_a_download_that_breaks_off(
    small_cifar: Made, offered: Server, cache: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    archive = tar_of(small_cifar.folder)
    offer(offered, archive, monkeypatch)
    offered.files[PATH], offered.promised[PATH] = archive[:1000], len(archive)
    with refused("could not be downloaded", cifar10.URL):
        load("cifar10")
    assert remains(cache) == []


@pytest.mark.parametrize("damage", ["half", "no tar", "no gzip", "empty"])
def test_damaged_archives(
    damage: str, small_cifar: Made, offered: Server, cache: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    """A checksum that was right for a wrong file: still one sentence, still nothing left."""
    whole = tar_of(small_cifar.folder)
    damaged = {
        "half": whole[: len(whole) // 2],
        "no tar": gzip.compress(b"not a tar"),
        "no gzip": b"not a gzip",
        "empty": b"",
    }
    offer(offered, damaged[damage], monkeypatch)
    with refused("could not be downloaded", "cifar-10-binary.tar.gz"):
        load("cifar10")
    assert remains(cache) == []


def test_an_archive_cannot_write_or_read_elsewhere(
    small_cifar: Made, offered: Server, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths out of the folder, absolute ones, links and devices are passed over; only the six files come out."""
    secret = tmp_path / "secret"
    secret.write_text("\n".join("abcdefghij"))
    name = "cifar-10-batches-bin/data_batch_1.bin"
    odd = (
        member("../escaped.bin", size=5),
        member("cifar-10-batches-bin/../../escaped.bin", size=5),
        member(str(tmp_path / "absolute.bin"), size=5),
        member("cifar-10-batches-bin/other.bin", size=5),
        member(name, tarfile.SYMTYPE, link=str(secret)),
        member("cifar-10-batches-bin/batches.meta.txt", tarfile.SYMTYPE, link=str(secret)),
        member("cifar-10-batches-bin/batches.meta.txt", tarfile.LNKTYPE, link=str(secret)),
        member("cifar-10-batches-bin/test_batch.bin", tarfile.FIFOTYPE),
        member("cifar-10-batches-bin/test_batch.bin", tarfile.DIRTYPE),
        member(name, size=7),  # the right name with the wrong size
        member("cifar-10-batches-bin/batches.meta.txt", size=5000),
    )
    before = {path for path in tmp_path.rglob("*") if cache not in path.parents}
    offer(offered, tar_of(small_cifar.folder, odd), monkeypatch)
    data = load("cifar10")
    assert data.fingerprint() == load("cifar10", small_cifar.folder).fingerprint()
    assert remains(cache) == sorted(["cifar-10-batches-bin", *FILES])
    assert not any(path.is_symlink() for path in cache.rglob("*"))
    assert {path for path in tmp_path.rglob("*") if cache not in path.parents} - {cache} == before - {cache}


@pytest.mark.parametrize("prefix", ["", "../cifar-10-batches-bin/", "./cifar-10-batches-bin/", "other/"])
def test_an_archive_without_the_expected_names(
    prefix: str,
    small_cifar: Made,
    offered: Server,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Refused,
) -> None:
    offer(offered, tar_of(small_cifar.folder, prefix=prefix), monkeypatch)
    with refused("does not hold cifar-10-batches-bin/data_batch_1.bin"):
        load("cifar10")
    assert remains(cache) == []


def test_another_process_may_finish_first(
    small_cifar: Made, offered: Server, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(offered, tar_of(small_cifar.folder), monkeypatch)
    move = download._move_into_place

    def late(ready: Path, target: Path) -> None:
        target.mkdir()
        for path in small_cifar.folder.iterdir():
            (target / path.name).write_bytes(path.read_bytes())
        move(ready, target)

    monkeypatch.setattr(download, "_move_into_place", late)
    data = load("cifar10")
    assert data.fingerprint() == load("cifar10", small_cifar.folder).fingerprint()
    assert remains(cache) == sorted(["cifar-10-batches-bin", *FILES])


def test_a_cache_that_cannot_be_written(
    small_cifar: Made, offered: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    offer(offered, tar_of(small_cifar.folder), monkeypatch)
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("AUTORECALL_CACHE", str(tmp_path / "file" / "cache"))
    with refused("could not be downloaded", "Not a directory"):
        load("cifar10")
    assert offered.asked == []


def test_the_bar_shows_what_has_come() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with download._Bar("some.tar.gz", visible=True, console=console) as bar:
        bar.total = 1000
        bar.update(250)
        assert bar.total == 1000
        assert bar._progress.tasks[0].percentage == 25
        bar.reset()
        bar.update(1000)
        assert bar._progress.finished
        bar.close()
    drawn = console.file
    assert isinstance(drawn, io.StringIO)
    assert "some.tar.gz" in drawn.getvalue()


def test_the_bar_is_told_by_pooch(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the real downloader: the total is known and reached, also after the progress was hidden."""
    server.files["/some.bin"] = np.arange(100_000, dtype=np.uint8).tobytes()
    bars: list[download._Bar] = []
    make = download._Bar.__init__

    def remember(self: download._Bar, label: str, visible: bool, console: Console | None = None) -> None:
        make(self, label, visible, Console(file=io.StringIO(), force_terminal=True))
        bars.append(self)

    monkeypatch.setattr(download._Bar, "__init__", remember)
    remote = download.Remote((server.address + "/some.bin",), hashlib.sha256(server.files["/some.bin"]).hexdigest())
    download.download((remote,), tmp_path / "made", download.keep, "it", progress=True)
    assert (tmp_path / "made" / "some.bin").read_bytes() == server.files["/some.bin"]
    task = bars[0]._progress.tasks[0]
    assert (task.total, task.completed) == (100_000, 100_000)
