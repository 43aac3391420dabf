"""Runs on a real Ray cluster of two nodes on this machine; `make test-ray` installs Ray and runs it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autorecall import cli
from autorecall.integrations import ray as integration

# Ray leaves pipes and sockets open.
pytestmark = pytest.mark.filterwarnings("default")

PROGRAM = [sys.executable, "-c", "from autorecall.cli import main; main()"]
GRID = ["sweep", "mnist/naive", "mnist/arm", "--seeds", "4", "--fraction", "0.2", "--threads", "1"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    yield found
    found.shutdown()


def test_eight_runs_survive_the_death_of_a_node(cluster: Any, tmp_path: Path) -> None:
    doomed = cluster.add_node(num_cpus=1)
    options = ["--ray", cluster.address, "--checkpoint-seconds", "0.5", "--out", str(tmp_path / "ray")]
    sweep = subprocess.Popen([*PROGRAM, *GRID, *options], stdout=subprocess.DEVNULL)
    while not list((tmp_path / "ray").glob("mnist/*/*/result.json")):
        assert sweep.poll() is None
        time.sleep(0.2)
    cluster.remove_node(doomed, allow_graceful=False)  # SIGKILL
    assert sweep.wait(300) == 0

    subprocess.run([*PROGRAM, *GRID, "--out", str(tmp_path / "alone")], check=True, stdout=subprocess.DEVNULL)
    alone = {path.relative_to(tmp_path / "alone"): path for path in (tmp_path / "alone").rglob("result.json")}
    assert len(alone) == 8
    for name, path in alone.items():
        other = tmp_path / "ray" / name
        assert other.with_name("history.csv").read_bytes() == path.with_name("history.csv").read_bytes()
        assert _numbers(other) == _numbers(path)


def test_ctrl_c_saves_all_runs_and_the_same_command_goes_on(cluster: Any, tmp_path: Path) -> None:
    words = ["sweep", "mnist/arm", "--threads", "1", "--ray", cluster.address, "--out", str(tmp_path)]
    sweep = subprocess.Popen([*PROGRAM, *words], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    history = tmp_path / "mnist" / "arm" / "seed-0" / "history.csv"
    while not history.exists() or history.read_bytes().count(b"\n") < 150:
        assert sweep.poll() is None
        time.sleep(0.1)
    sweep.send_signal(2)
    _, said = sweep.communicate(timeout=60)
    assert sweep.returncode == 130
    assert "1 of 1 runs to go" in said
    assert list((history.parent / "checkpoints").glob("*.safetensors"))
    done = subprocess.run([*PROGRAM, *words], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0
    assert (history.parent / "result.json").exists()


@pytest.mark.parametrize("address", ["nowhere", "ray://127.0.0.1:1", "127.0.0.1:x", "", ":1"])
def test_a_wrong_address_is_refused(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray")
    assert cli.dispatch(["sweep", "mnist/naive", "--ray", address, "--out", str(tmp_path)]) == 2
    assert "expected HOST:PORT" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_cluster_that_does_not_answer_is_refused_before_data_are_looked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray")
    words = ["--data", str(tmp_path / "none"), "--out", str(tmp_path)]
    assert cli.dispatch(["sweep", "cifar10/naive", "--ray", "127.0.0.1:1", *words]) == 2
    assert "no Ray cluster answers at 127.0.0.1:1" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_without_ray_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert cli.dispatch(["sweep", "mnist/naive", "--ray", "local", "--out", str(tmp_path)]) == 2
    assert "install autorecall[ray]" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_board_answers_whether_to_stop_and_tells_each_piece_of_news_once() -> None:
    board = integration.Board()
    assert board.report(3, {"step": 1, "steps": 2}) is False
    board.stop()
    assert board.report(4, {"interrupted": True}) is True
    assert board.news() == [(3, {"step": 1, "steps": 2}), (4, {"interrupted": True})]
    assert board.news() == []


def _numbers(path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(path.read_text())
    del found["seconds"]
    return found
