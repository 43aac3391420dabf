"""The folder of a run: to whom it belongs, what it holds, and what is refused there."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import shutil
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from autorecall import NaiveConfig
from autorecall.data import Dataset
from autorecall.errors import AutorecallError, ConfigError, DataError, InterruptedRunError, StoppedError
from autorecall.networks import MLPConfig
from autorecall.presets import PRESETS
from autorecall.runs.folder import read_config
from autorecall.runs.loop import Observer
from autorecall.runs.result import Result
from autorecall.runs.run import run
from autorecall.storage.formats import FORMAT, stamped
from autorecall.storage.schema import to_json
from autorecall.storage.state import State, mapping
from autorecall.storage.state_file import read_state, write_state

from .worlds import FINISHED, STEPS, Stop, Watch, config, contents, interrupt, kill, names, saved


def times(folder: Path) -> dict[Path, int]:
    """When each file was last written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


# Another config, other data, another preset


@pytest.mark.parametrize("step", [1, 7])
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"seed": 1}, "differs in seed (now 1, before 0)"),
        ({"device": "cpu:0"}, "differs in device (now cpu:0, before cpu)"),
        ({"fraction": 0.5, "seed": 2}, "differs in fraction (now 0.5, before 1.0), seed (now 2, before 0)"),
        ({"network": MLPConfig((16, 8))}, "differs in network.hidden (now [16, 8], before [16])"),
        ({"learner": NaiveConfig(0.5)}, "differs in learner.method (now naive, before arm)"),
    ],
    ids=str,
)
def test_a_changed_config_is_named_and_refused(
    data: Dataset, tmp_path: Path, changes: dict[str, object], sentence: str, step: int
) -> None:
    """Before the first checkpoint and after it."""
    kill(config("arm"), data, tmp_path, step)
    found = contents(tmp_path)
    with pytest.raises(ConfigError) as caught:
        run("own/bars", config("arm", **changes), data, tmp_path)
    assert str(caught.value).startswith(f"{tmp_path} holds an unfinished run that {sentence}")
    assert str(caught.value).endswith("; choose another --out, or --fresh to move it aside")
    assert contents(tmp_path) == found
    run("own/bars", config("arm"), data, tmp_path)


def test_another_interval_is_no_change(data: Dataset, tmp_path: Path) -> None:
    watch = Watch()
    interrupt(config(), data, tmp_path, 7)
    first = run("own/bars", config(checkpoint_seconds=5.0), data, tmp_path, watch)
    assert watch.resumptions == [7]
    assert run("own/bars", config(checkpoint_seconds=6.0), data, tmp_path) == first


def test_threads_that_were_left_open_count_as_they_were(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autorecall.runs.run.cores", lambda: 2)
    interrupt(config("arm", threads=None), data, tmp_path, 7)
    monkeypatch.setattr("autorecall.runs.run.cores", lambda: 1)  # another machine
    with pytest.raises(ConfigError, match=r"differs in threads \(now 1, before 2\); resume with --threads 2, choose"):
        run("own/bars", config("arm", threads=None), data, tmp_path)
    watch = Watch()
    first = run("own/bars", config("arm", threads=2), data, tmp_path, watch)
    assert watch.resumptions == [7]
    # Finished on two threads, however that came about; and what was left open may be left open.
    for threads in (2, None):
        assert run("own/bars", config("arm", threads=threads), data, tmp_path) == first
    with pytest.raises(ConfigError, match=r"a finished run that differs in threads \(now 3, before None\); choose"):
        run("own/bars", config("arm", threads=3), data, tmp_path)


def test_threads_do_not_matter_before_anything_is_saved(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autorecall.runs.run.cores", lambda: 2)
    kill(config("arm", threads=2), data, tmp_path, 1)
    assert run("own/bars", config("arm", threads=None), data, tmp_path).steps == STEPS


@pytest.mark.parametrize("finished", [False, True])
def test_changed_data_are_refused(data: Dataset, tmp_path: Path, finished: bool) -> None:
    if finished:
        run("own/bars", config(), data, tmp_path)
    else:
        interrupt(config(), data, tmp_path, 7)
    inputs = data.train.inputs.copy()
    inputs[3, 0, 0, 0] ^= 1
    changed = dataclasses.replace(data, train=dataclasses.replace(data.train, inputs=inputs))
    with pytest.raises((ConfigError, DataError), match="other data"):
        run("own/bars", config(), changed, tmp_path)


@pytest.mark.parametrize("until", [1, 7, STEPS])
def test_another_preset_is_refused(data: Dataset, tmp_path: Path, until: int) -> None:
    if until < STEPS:
        kill(config(), data, tmp_path, until)
    else:
        run("own/bars", config(), data, tmp_path)
    with pytest.raises(ConfigError, match=r"with other preset \(own/bars, now other/bars\)"):
        run("other/bars", config(), data, tmp_path)


# Finished, diverged, afresh


def test_a_finished_run_is_returned_and_not_run_again(data: Dataset, tmp_path: Path) -> None:
    first = run("own/bars", config(checkpoint_seconds=0.0), data, tmp_path)
    assert names(tmp_path) == FINISHED  # and no checkpoint
    found = times(tmp_path)
    assert run("own/bars", config(), data, tmp_path, Watch(killed_after=1)) == first
    assert times(tmp_path) == found


def test_a_finished_run_is_rid_of_what_was_left_of_its_checkpoints(data: Dataset, tmp_path: Path) -> None:
    interrupt(config(), data, tmp_path / "run", 7)
    shutil.copytree(tmp_path / "run" / "checkpoints", tmp_path / "kept")
    run("own/bars", config(), data, tmp_path / "run")
    shutil.copytree(tmp_path / "kept", tmp_path / "run" / "checkpoints")  # as if killed before they were removed
    run("own/bars", config(), data, tmp_path / "run")
    assert names(tmp_path / "run") == FINISHED


def test_a_run_that_diverged_says_so_again_and_starts_over_only_afresh(data: Dataset, tmp_path: Path) -> None:
    folder, hot = tmp_path / "run", config(NaiveConfig(1e30), checkpoint_seconds=0.0)
    with pytest.raises(StoppedError, match=r"^stopped at step 2"):
        run("own/bars", hot, data, folder)
    found = contents(folder)
    with pytest.raises(StoppedError, match=r"holds a run that diverged: at step 2 \(task 1\) the loss .*--fresh"):
        run("own/bars", hot, data, folder)
    with pytest.raises(ConfigError, match=r"holds a diverged run that differs in learner.learning_rate \(now 0.5"):
        run("own/bars", config(), data, folder)
    assert contents(folder) == found
    with pytest.raises(StoppedError, match=r"^stopped at step 2"):
        run("own/bars", hot, data, folder, fresh=True)
    assert contents(tmp_path / "run.old-1") == contents(folder) == found
    run("own/bars", config(), data, folder, fresh=True)
    assert names(folder) == FINISHED  # no longer marked as stopped


@pytest.mark.parametrize("finished", [False, True])
def test_fresh_moves_the_old_folder_aside(data: Dataset, tmp_path: Path, finished: bool) -> None:
    folder, watch = tmp_path / "run", Watch()
    if finished:
        run("own/bars", config(), data, folder, fresh=True)  # when there is nothing to move
    else:
        interrupt(config(), data, folder, 7)
    assert names(tmp_path) == {"run"}
    found = contents(folder)
    run("own/bars", config(seed=1), data, folder, watch, fresh=True)
    assert (watch.first, watch.resumptions) == (1, [])
    assert contents(tmp_path / "run.old-1") == found
    assert names(tmp_path) == {"run", "run.old-1"}


def test_a_fresh_run_that_is_interrupted_does_not_advise_to_start_over(data: Dataset, tmp_path: Path) -> None:
    advice = "run the same command without --fresh to resume from step 5"
    for _ in range(2):  # the second time, something is moved aside
        stop = Stop(5)
        with pytest.raises(InterruptedRunError, match=rf"^interrupted at step 5 of 8; {advice}$"):
            run("own/bars", config(), data, tmp_path / "run", stop, fresh=True, stop=stop)


def test_the_folder_one_is_in_cannot_be_moved_aside(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run("own/bars", config(), data, Path())
    found = contents(tmp_path)
    with pytest.raises(ConfigError, match=r"^cannot move \. aside, because it is the folder you are in"):
        run("own/bars", config(), data, Path(), fresh=True)
    assert contents(tmp_path) == found


# One writer


def test_a_second_run_in_the_same_folder_is_refused(data: Dataset, tmp_path: Path) -> None:
    refusals: list[str] = []

    class Doubled(Observer):
        def step(self, step: int, steps: int, task: int, numbers: Mapping[str, float]) -> None:
            for fresh in (False, True):
                with pytest.raises(AutorecallError) as caught:
                    run("own/bars", config(), data, tmp_path, fresh=fresh)
                refusals.append(str(caught.value))

    run("own/bars", config(), data, tmp_path, Doubled())
    owner = f"{os.getpid()} on {platform.node()}"
    expected = f"{tmp_path} is in use by process {owner}; wait for it or choose another folder"
    assert refusals == [expected] * (2 * STEPS)


def test_of_many_at_once_one_runs_and_the_others_are_refused(data: Dataset, tmp_path: Path) -> None:
    results, refusals = list[Result](), list[str]()
    together = threading.Barrier(6)

    def attempt() -> None:
        together.wait()
        try:
            results.append(run("own/bars", config(), data, tmp_path))
        except AutorecallError as error:
            refusals.append(str(error))

    found = torch.get_num_threads()
    threads = [threading.Thread(target=attempt) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.set_num_threads(found)
    assert len(results) + len(refusals) == 6
    assert results  # late ones may find it finished, and are given the same
    assert all(result == results[0] for result in results)
    assert all("is in use by process" in sentence for sentence in refusals)


# What is in checkpoints, damaged ones, and what was left


def test_a_checkpoint_holds_nothing_that_only_the_result_says(data: Dataset, tmp_path: Path) -> None:
    """One of a version that put it there is read all the same."""
    run("own/bars", config(), data, tmp_path / "whole")
    interrupt(config(), data, tmp_path / "run", 3)
    (path,) = (tmp_path / "run" / "checkpoints").glob("step-*")
    state = read_state(path)
    stored = mapping(state["run"])
    assert stored.keys().isdisjoint(("lessons", "tested"))
    lesson: State = {"data": "abc", "test_share": None, "val_share": 0.5, "skip_broken": True}
    write_state(path, {**state, "run": {**stored, "lessons": [lesson], "tested": "abc"}})
    watch = Watch()
    run("own/bars", config(), data, tmp_path / "run", watch)
    assert watch.resumptions == [3]
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


@pytest.mark.parametrize("damaged", [1, 2])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    data: Dataset, tmp_path: Path, whole: dict[str, object], damaged: int
) -> None:
    watch = Watch()
    interrupt(config("arm", checkpoint_seconds=0.0), data, tmp_path, 7)
    assert saved(tmp_path) == [6, 7]
    paths = sorted(tmp_path.glob("checkpoints/*"), reverse=True)[:damaged]
    for path in paths:
        os.truncate(path, path.stat().st_size // 2)
    run("own/bars", config("arm"), data, tmp_path, watch)
    over = [f"no checkpoint in {tmp_path / 'checkpoints'} is intact; the run starts over"] if damaged == 2 else []
    assert watch.warnings == [f"the checkpoint {path} is damaged and was skipped" for path in paths] + over
    assert (watch.resumptions, watch.first) == (([6], 7) if damaged == 1 else ([], 1))
    assert contents(tmp_path) == whole


def test_without_an_observer_a_damaged_checkpoint_is_a_warning(data: Dataset, tmp_path: Path) -> None:
    interrupt(config(), data, tmp_path, 7)
    os.truncate(sorted(tmp_path.glob("checkpoints/*"))[-1], 9)
    with pytest.warns(UserWarning, match="is damaged and was skipped"):
        run("own/bars", config(), data, tmp_path)


@pytest.mark.parametrize("step", [1, 7])
def test_what_a_killed_process_left_is_removed_and_what_others_put_there_stays(
    data: Dataset, tmp_path: Path, step: int
) -> None:
    """Before the first checkpoint and after it."""
    kill(config(), data, tmp_path, step)
    (tmp_path / "checkpoints").mkdir(exist_ok=True)
    others = {".notes.tmp", ".history.csv.tmp", "notes.txt", "checkpoints/mymodel.pt", "checkpoints/.a.1.tmp"}
    left = {
        ".lock",
        ".result.json.123.tmp",
        ".recalled.png.4.tmp",
        ".curves.png.4.tmp",
        "checkpoints/.step-000000009.safetensors.123.tmp",
    }
    left |= {".curves.png.4.tmp", ".learner.safetensors.5.tmp", ".model.safetensors.6.tmp"}
    for name in others | left | ({"recalled.png", "curves.png", "learner.safetensors"} if step == 1 else set()):
        (tmp_path / name).write_text("half a f")
    run("own/bars", config(), data, tmp_path)
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == others | FINISHED


RUNS_OWN = ["config.json", "result.json", "stopped.json", "history.csv", "learner.safetensors", "model.safetensors"]
IRREGULAR = [*RUNS_OWN, "checkpoints", "checkpoints/history.csv"]


def make_irregular(path: Path, kind: str) -> None:
    """What no run makes, under the name of one of its files."""
    if kind == "a folder":
        path.mkdir()
    elif kind == "a pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path.parent.with_name("elsewhere"))


@pytest.mark.parametrize("kind", ["a folder", "a pipe", "a symbolic link"])
@pytest.mark.parametrize("name", IRREGULAR)
def test_what_no_run_makes_is_refused_and_not_waited_for(data: Dataset, tmp_path: Path, name: str, kind: str) -> None:
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    interrupt(config(), data, folder, 6)
    shutil.copytree(folder / "checkpoints", elsewhere) if name == "checkpoints" else elsewhere.write_text("precious")
    if name == "checkpoints":
        if kind == "a folder":
            return
        shutil.rmtree(folder / name)
    else:
        (folder / name).unlink(missing_ok=True)
    make_irregular(folder / name, kind)
    found = names(folder)
    with pytest.raises(AutorecallError, match=rf"/run/{name} is {kind}, (which no run makes|not a regular file); "):
        run("own/bars", config(), data, folder)
    assert names(folder) == found
    run("own/bars", config(), data, folder, fresh=True)
    assert names(folder) == FINISHED
    if name != "checkpoints":
        assert elsewhere.read_text() == "precious"


@pytest.mark.parametrize("kind", ["a pipe", "a symbolic link"])
def test_a_checkpoint_that_is_no_file_is_put_aside_as_a_damaged_one(data: Dataset, tmp_path: Path, kind: str) -> None:
    folder, watch = tmp_path / "run", Watch()
    interrupt(config(checkpoint_seconds=0.0), data, folder, 6)
    newest = folder / "checkpoints" / "step-000000006.safetensors"
    (tmp_path / "elsewhere").write_bytes(newest.read_bytes())
    newest.unlink()
    make_irregular(newest, kind) if kind == "a pipe" else newest.symlink_to(tmp_path / "elsewhere")
    run("own/bars", config(), data, folder, watch)
    assert watch.resumptions == [5]
    assert watch.warnings == [f"the checkpoint {newest} is damaged and was skipped"]
    assert names(folder) == FINISHED
    assert (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("name", ["history.csv", "config.json", "checkpoints/mymodel.pt", ".notes.tmp"])
def test_a_folder_with_the_files_of_others_is_refused(data: Dataset, tmp_path: Path, name: str, fresh: bool) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('{"name": "mine"}')
    with pytest.raises(ConfigError, match=r"holds other files and no run of autorecall; choose a new or an empty"):
        run("own/bars", config(), data, tmp_path, fresh=fresh)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [Path(name).name]


# config.json


def test_a_config_is_read_with_its_preset(tmp_path: Path) -> None:
    for name, row in PRESETS.items():
        (tmp_path / "config.json").write_text(json.dumps(stamped({"preset": name} | to_json(row.config))))
        assert read_config(tmp_path / "config.json") == (name, row.config)


@pytest.mark.parametrize("until", [1, 7, STEPS + 2])
def test_a_run_from_python_may_have_any_name(data: Dataset, tmp_path: Path, until: int) -> None:
    """Only the command line makes the name of a folder of it."""
    name = "My bars, 2nd_try/λ"
    answers = iter([False] * until + [True])
    with suppress(InterruptedRunError):
        run(name, config(), data, tmp_path, stop=answers.__next__)
    first = run(name, config(), data, tmp_path)
    assert first.preset == name
    assert run(name, config(), data, tmp_path) == first


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not valid JSON .*"),
        ('{"preset": "own/bars", "tomorrow": 1}', "config.tomorrow is not a field of RunConfig; remove it"),
        ('{"preset": 1}', "its preset is 1; expected a name.*"),
        ('{"seed": 1}', "its preset is None; expected a name.*"),
        (
            f'{{"preset": "own/bars", "format": {FORMAT + 1}}}',
            f"its format is {FORMAT + 1}, from a newer autorecall, .*",
        ),
    ],
)
def test_a_config_that_cannot_be_read_is_named(data: Dataset, tmp_path: Path, text: str, sentence: str) -> None:
    folder = tmp_path / "run"
    kill(config(), data, folder, 1)
    (folder / "config.json").write_text(text)
    with pytest.raises(DataError, match=rf"config\.json:? {sentence}; --fresh starts over$"):
        run("own/bars", config(), data, folder)
    assert run("own/bars", config(), data, folder, fresh=True).steps == STEPS
