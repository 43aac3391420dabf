"""Small made files for every layout, a server on this machine, and the real data where AUTORECALL_DATA names it."""

from __future__ import annotations

import http.server
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from autorecall.data import cifar10, mnist
from autorecall.errors import DataError

REAL = os.environ.get("AUTORECALL_DATA")

Refused = Callable[..., AbstractContextManager[None]]


@pytest.fixture
def real() -> Path:
    if not REAL:
        pytest.skip("AUTORECALL_DATA names no folder with the real data")
    return Path(REAL)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a cache of its own, sees no AUTORECALL_DATA, and can reach no real server."""
    nowhere = "http://127.0.0.1:9/"
    monkeypatch.delenv("AUTORECALL_DATA", raising=False)
    monkeypatch.setenv("AUTORECALL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(mnist, "MIRRORS", (nowhere + "first/", nowhere + "second/"))
    monkeypatch.setattr(cifar10, "URL", nowhere + "cifar-10-binary.tar.gz")
    return tmp_path / "cache"


@pytest.fixture
def refused() -> Refused:
    """`with refused("part", ...)`: a DataError of one sentence that holds every part."""

    @contextmanager
    def check(*parts: str) -> Iterator[None]:
        with pytest.raises(DataError) as caught:
            yield
        sentence = str(caught.value)
        assert "\n" not in sentence
        assert not sentence.endswith(".")
        for part in parts:
            assert part in sentence

    return check


@dataclass
class Made:
    """What a made dataset holds, to compare the read one with."""

    folder: Path
    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def idx(array: np.ndarray) -> bytes:
    """An idx file, written by hand after its definition."""
    header = b"\x00\x00\x08" + array.ndim.to_bytes(1, "big") + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return header + array.astype(np.uint8).tobytes()


@pytest.fixture
def small_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """600 training and 30 test images, 60 and 3 a class."""
    monkeypatch.setattr(mnist, "COUNTS", {"train": 600, "t10k": 30})
    rng = np.random.default_rng(1)
    images, labels = rng.integers(0, 256, (600, 28, 28), dtype=np.uint8), rng.permutation(np.arange(600) % 10)
    test_images, test_labels = rng.integers(0, 256, (30, 28, 28), dtype=np.uint8), rng.permutation(np.arange(30) % 10)
    folder = tmp_path / "given" / "mnist"
    folder.mkdir(parents=True)
    (folder / "train-images-idx3-ubyte").write_bytes(idx(images))
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(labels))
    (folder / "t10k-images-idx3-ubyte").write_bytes(idx(test_images))
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx(test_labels))
    return Made(folder, images, labels, test_images, test_labels)


@pytest.fixture
def small_cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """Five batches of 20 training images, 10 a class, and 20 test images."""
    monkeypatch.setattr(cifar10, "RECORDS", 20)
    monkeypatch.setattr(cifar10, "VALIDATION_PER_CLASS", 3)
    rng = np.random.default_rng(2)
    images, labels = rng.integers(0, 256, (120, 3, 32, 32), dtype=np.uint8), rng.permutation(np.arange(100) % 10)
    labels = np.concatenate([labels, rng.permutation(np.arange(20) % 10)])
    folder = tmp_path / "given" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for number, name in enumerate(["data_batch_1", *(f"data_batch_{n}" for n in range(2, 6)), "test_batch"]):
        rows = [bytes([labels[i]]) + images[i].tobytes() for i in range(20 * number, 20 * number + 20)]
        (folder / f"{name}.bin").write_bytes(b"".join(rows))
    return Made(folder, images[:100], labels[:100], images[100:], labels[100:])


@dataclass
class Server:
    """A web server on this machine: what it holds, and what it was asked for."""

    address: str
    files: dict[str, bytes] = field(default_factory=dict)
    promised: dict[str, int] = field(default_factory=dict)
    """Content-Length to claim where it is not the true one."""
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(self.path)
            content = state.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(state.promised.get(self.path, len(content))))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    listening = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    state = Server(f"http://127.0.0.1:{listening.server_port}")
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state
    listening.shutdown()
    thread.join()
    listening.server_close()
