"""Your own data from the command line: folders and .npz files, their shares, tasks and class names."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from autorecall import load_model
from autorecall.data import Dataset
from autorecall.presets import PRESETS
from autorecall.runs import loop
from autorecall.storage.formats import stamped
from autorecall.storage.schema import to_json, with_field

from .test_signals import signalled
from .worlds import Say, read, refused

NAMES = ("cat", "dog", "owl", "cow", "a hen")
QUICK = ["--threads", "1", "--network.hidden", "16", "--curve-points", "0"]
FOLDER = ["run", "mnist/naive", "--dataset", "folder", "--image-size", "8", *QUICK]
NPZ = ["run", "mnist/naive", "--data", "data.npz", *QUICK]


def arrays(each: int = 10, classes: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """A bright row per class, on noise."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), each)
    images = rng.integers(0, 100, (len(labels), 8, 8), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[label] = 250
    return images, labels


def lay(root: Path, each: int = 10, names: Sequence[str] = NAMES) -> None:
    images, labels = arrays(each, len(names))
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = root / names[label] / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)


def write(path: Path, **more: object) -> None:
    x, y = arrays()
    np.savez(path, train_x=x, train_y=y, test_x=x[::2], test_y=y[::2], classes=NAMES, **more)  # type: ignore[arg-type]


def only(place: Path) -> Path:
    """The only run folder."""
    (found,) = place.glob("runs/*/*/seed-0")
    return found


# Folders


def test_a_folder_with_train_and_test_is_taken_as_such(say: Say, place: Path) -> None:
    lay(place / "photos" / "train")
    lay(place / "photos" / "test", each=3)
    said = say(*FOLDER, "--data", "photos")
    assert (said.code, said.err) == (0, "")
    found = read(only(place) / "result.json")
    assert found["steps"] == 2 * 2 + 1  # ten images of each of five classes, by tens, two classes a task
    assert found["tasks"] == [["a hen", "cat"], ["cow", "dog"], ["owl"]]
    refused(say(*FOLDER, "--data", "photos", "--split", "val"), "the val split has no image of class a hen")
    refused(say(*FOLDER, "--data", "photos", "--test-share", "0.2"), "test_share is 0.2 but photos has test images")
    assert say(*FOLDER, "--data", "photos", "--split", "val", "--val-share", "0.2").code == 0


def test_a_class_that_is_not_tested_is_refused(say: Say, place: Path) -> None:
    lay(place / "photos" / "train")
    lay(place / "photos" / "test", each=3, names=NAMES[:4])
    refused(say(*FOLDER, "--data", "photos"), "photos/train has the class a hen but photos/test has no image of it")


def test_shares_are_kept_with_the_run_and_repeated_by_its_config(say: Say, place: Path) -> None:
    lay(place / "photos")
    assert say(*FOLDER, "--data", "photos", "--test-share", "0.5", "--val-share", "0.1").code == 0
    folder = only(place)
    assert folder.parent.name.endswith("+test_share=0.5+val_share=0.1")
    config = json.loads((folder / "config.json").read_text())
    assert (config["test_share"], config["val_share"]) == (0.5, 0.1)
    assert read(folder / "result.json")["steps"] == 3  # 4 of 10 images of each class to train, two classes a task
    said = say("run", "--config", str(folder / "config.json"), "--data", "photos", "--out", "again")
    assert (said.code, said.err) == (0, "")
    (again,) = place.glob("again/folder/*/seed-0")
    assert read(again / "result.json") == read(folder / "result.json")
    said = say(*FOLDER, "--data", "photos", "--test-share", "0.5", "--val-share", "0.1")
    assert said.out.startswith("already finished")


def test_an_interrupted_run_with_shares_goes_on(say: Say, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(place / "photos", each=20)
    words = [*FOLDER, "--data", "photos", "--test-share", "0.5", "--stream.tasks", "1", "4"]
    assert say(*words, "--out", "whole").code == 0
    with monkeypatch.context() as patched:
        signalled(patched, 2, signal.SIGTERM)
        assert say(*words).code == 143
    said = say(*words)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("resuming after step 2 of ")
    (whole,) = place.glob("whole/folder/*/seed-0")
    assert read(only(place) / "result.json") == read(whole / "result.json")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--test-share 1", "test_share is 1.0; expected a number above 0 and below 1"),
        ("--test-share nan", "test_share is nan"),
        ("--val-share -1", "val_share is -1.0; expected a number of at least 0 and below 1"),
        ("--test-share 0.6 --val-share 0.4", "test_share and val_share add up to 1; expected less than 1"),
        ("--test-images 0", "test_images is 0; expected 1 to 1,000,000,000"),
        ("--stream.tasks 5 3 2", "stream.tasks is (5, 3, 2), 10 in all, but there are 5 classes to learn"),
        ("--stream.tasks 5 0", "stream.tasks is (5, 0); expected at least one class in every task"),
        ("--stream.order cat dog", "stream.order leaves out 'a hen'"),
        ("--stream.order cat dgo owl cow", "stream.order names 'dgo', which the data do not have"),
    ],
)
def test_what_cannot_work_is_refused_and_nothing_is_written(say: Say, place: Path, words: str, sentence: str) -> None:
    lay(place / "photos", each=2)
    refused(say(*FOLDER, "--data", "photos", *words.split()), sentence)
    assert not (place / "runs").exists()


@pytest.mark.parametrize("words", ["--test-share 0.2", "--val-share 0.2", "--skip-broken"])
def test_what_is_for_own_data_is_refused_for_others(say: Say, words: str) -> None:
    refused(say("run", "mnist/naive", *words.split()), "; leave it out")


def test_broken_images_are_left_out_and_counted(say: Say, place: Path) -> None:
    lay(place / "photos")
    words = [*FOLDER, "--data", "photos"]
    for number in range(7):
        (place / "photos" / "cow" / f"{number}.png").write_text("junk")
    refused(say(*words), "photos/cow/0.png cannot be read as an image", "set skip_broken")
    said = say(*words, "--skip-broken")
    assert said.code == 0
    names = ", ".join(f"cow/{number}.png" for number in range(5))
    assert said.err == f"autorecall: left out 7 images that cannot be read: {names} and 2 more\n"
    assert "left out          7 images that cannot be read" in said.out
    assert read(only(place) / "result.json")["left_out"] == 7
    again = say(*words, "--skip-broken")
    assert again.out.startswith("already finished")
    assert "left out          7 images that cannot be read" in again.out


def test_nothing_is_said_if_nothing_is_broken(say: Say, place: Path) -> None:
    lay(place / "photos")
    said = say(*FOLDER, "--data", "photos", "--skip-broken")
    assert (said.code, said.err) == (0, "")
    assert "left out" not in said.out
    assert read(only(place) / "result.json")["left_out"] == 0


def test_a_class_of_three_images_is_learned(say: Say, place: Path) -> None:
    lay(place / "photos")
    for path in sorted((place / "photos" / "owl").iterdir())[3:]:
        path.unlink()
    said = say(*FOLDER, "--data", "photos", "--stream.tasks", "4", "1")
    assert (said.code, said.err) == (0, "")
    refused(
        say(*FOLDER, "--data", "photos", "--split", "val"),
        "the val split has no image of class a hen, so its accuracy cannot be measured; add images, or raise val_share",
    )


# .npz files


def test_a_file_of_arrays_is_learned(say: Say, place: Path) -> None:
    write(place / "data.npz")
    said = say(*NPZ)
    assert (said.code, said.err) == (0, "")
    folder = only(place)
    assert folder.relative_to(place).parts[:2] == ("runs", "npz")
    assert json.loads((folder / "config.json").read_text())["dataset"] == "npz"
    assert load_model(folder).classes == NAMES
    assert say(*NPZ).out.startswith("already finished")
    assert say(*NPZ[:-2], "--dataset", "npz", "--out", "other").code == 0


def test_a_file_of_arrays_alone_is_split_by_shares(say: Say, place: Path) -> None:
    x, y = arrays()
    np.savez(place / "data.npz", x=x, y=y)
    assert say(*NPZ, "--test-share", "0.5").code == 0
    assert read(only(place) / "result.json")["steps"] == 3


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "data.npz is damaged or not a .npz file; write it again with numpy.savez"),
        (None, "the file data.npz does not exist; give the path of a .npz file"),
    ],
)
def test_a_file_that_is_none_is_refused(say: Say, place: Path, content: bytes | None, sentence: str) -> None:
    if content is not None:
        (place / "data.npz").write_bytes(content)
    refused(say(*NPZ), sentence)
    assert not (place / "runs").exists()


def test_another_dataset_that_is_named_is_not_overruled(say: Say, place: Path) -> None:
    write(place / "data.npz")
    refused(say(*NPZ, "--dataset", "folder"), "the folder data.npz does not exist")
    refused(say(*NPZ, "--dataset=folder"), "the folder data.npz does not exist")


def test_a_folder_of_images_is_meant_even_if_nobody_says_so(say: Say, place: Path) -> None:
    lay(place / "photos")
    assert say("run", "mnist/naive", "--data", "photos", "--image-size", "8", *QUICK).code == 0
    assert read(only(place) / "result.json")["tasks"] == [["a hen", "cat"], ["cow", "dog"], ["owl"]]


def test_a_folder_that_the_embedded_digits_do_not_need_is_mentioned(say: Say, place: Path) -> None:
    (place / "photos").mkdir()
    said = say("run", "mnist/naive", "--data", "photos")
    assert said.code == 0
    assert said.err == (
        "autorecall: --data is not used, as mnist comes with the package; add --dataset folder for your own images\n"
    )


# Tasks and names


def test_tasks_have_their_sizes_and_classes_their_order(say: Say, place: Path) -> None:
    write(place / "data.npz")
    said = say(*NPZ, "--stream.tasks", "1", "3", "1", "--stream.order", "owl", "cat", "a hen", "dog", "cow")
    assert (said.code, said.err) == (0, "")
    folder = only(place)
    assert read(folder / "result.json")["tasks"] == [["owl"], ["cat", "a hen", "dog"], ["cow"]]
    config = json.loads((folder / "config.json").read_text())
    assert config["stream"]["order"] == ["owl", "cat", "a hen", "dog", "cow"]
    assert config["stream"]["tasks"] == [1, 3, 1]
    assert "accuracy in %    owl  cat, a hen, dog    cow\nafter task  1 " in said.out
    said = say("run", "--config", str(folder / "config.json"), "--data", "data.npz", "--out", "again")
    assert (said.code, said.err) == (0, "")
    (again,) = place.glob("again/npz/*/seed-0")
    assert read(again / "result.json") == read(folder / "result.json")


def test_a_class_may_return(say: Say, place: Path) -> None:
    write(place / "data.npz")
    order = ["cat", "dog", "cat", "owl", "cow", "a hen"]
    said = say(*NPZ, "--stream.order", *order)
    assert (said.code, said.err) == (0, "")
    assert read(only(place) / "result.json")["tasks"] == [order[:2], order[2:4], order[4:]]
    refused(say(*NPZ, "--stream.order", "cat", "cat", *order[1:]), "task 1 has the class 'cat' twice")


def test_an_order_with_escape_codes_is_shown_without_them(say: Say, place: Path) -> None:
    write(place / "data.npz")
    said = say(*NPZ, "--stream.order", "\x1b[2Jcat")
    refused(said, "stream.order names '\\x1b[2Jcat'")
    assert (said.out + said.err).replace("\n", "").isprintable()


@pytest.mark.parametrize("words", [["--help"], ["--nothing"], []])
def test_a_stored_order_with_escape_codes_is_shown_without_them(say: Say, place: Path, words: list[str]) -> None:
    config = with_field(PRESETS["mnist/naive"].config, "stream.order", ("\x1b[2J", "\u202e"))
    (place / "config.json").write_text(json.dumps(stamped({"preset": "mnist/naive"} | to_json(config))))
    said = say("run", "--config", "config.json", *words)
    printed = said.out + said.err
    assert printed.strip()
    assert printed.replace("\n", "").isprintable()


def test_show_names_the_tasks_of_own_data(say: Say, place: Path) -> None:
    write(place / "data.npz")
    assert say(*NPZ, "--stream.tasks", "2", "3").code == 0
    assert say("run", "mnist/naive").code == 0
    said = say("show", "runs")
    assert "stream.tasks=[2, 3]: tasks cat, dog; owl, cow, a hen." in re.sub(r"\s+", " ", said.out)
    assert said.out.count(": tasks ") == 1  # digits need no names
    said = say("show", "runs", "--markdown")
    assert ": tasks cat, dog; owl, cow, a hen." in said.out


# The matrix, once


def rows(text: str) -> list[str]:
    return re.findall(r"^after task +(\d+) ", text, re.MULTILINE)


def test_the_matrix_is_printed_once(say: Say, place: Path) -> None:
    said = say("run", "mnist/naive")
    assert rows(said.out) == list("12345")
    assert "━" not in said.out  # no table in addition
    again = say("run", "mnist/naive")
    assert rows(again.out) == list("12345")
    shown = [line for line in said.out.splitlines() if line.startswith("after task")]
    assert [line for line in again.out.splitlines() if line.startswith("after task")] == shown


def test_a_run_that_was_resumed_ends_with_all_of_it(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        signalled(patched, 7, signal.SIGTERM)
        assert rows(say("run", "mnist/naive").out) == ["1"]
    assert rows(say("run", "mnist/naive").out) == [*"2345", *"12345"]


# Testing on a part


def test_a_quick_look_tests_on_fewer_images(
    say: Say, place: Path, few_digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    tested: list[int] = []
    evaluate = loop.evaluate

    def counting(learner: object, split: object, *rest: object) -> object:
        tested.append(len(split))  # type: ignore[arg-type]
        return evaluate(learner, split, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "evaluate", counting)
    said = say("run", "mnist/naive", "--test-images", "30", "--curve-points", "0")
    assert (said.code, said.err) == (0, "")
    assert tested == [30] * 5
    assert "% on test, about 30 images" in said.out
    assert only(place).parent.name == "naive+test_images=30"
    tested.clear()
    assert say("run", "mnist/naive", "--curve-points", "0").code == 0
    assert tested == [100] * 5


def test_runs_are_not_put_among_the_classes(say: Say, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the next command would take them for one."""
    lay(place / "photos", 4, ("cat", "dog"))
    monkeypatch.chdir(place / "photos")
    refused(say("run", "--data", "."), "--out runs lies among the class folders of --data")
    refused(say("run", "--data", ".", "--out", "results/today"), "--out results/today lies among the class folders")
    refused(say("run", "--data", ".", "--out", "."), "--out . lies among the class folders")
    assert {path.name for path in (place / "photos").iterdir()} == {"cat", "dog"}
    assert say("run", "mnist/naive", *QUICK, "--data", ".", "--out", "../runs").code == 0


def test_files_that_are_not_read_are_mentioned(say: Say, place: Path) -> None:
    lay(place / "photos", 4, ("cat", "dog"))
    for name in ("a.heic", "b.HEIC", "c.cr2", ".hidden"):
        (place / "photos" / "cat" / name).write_text("")
    (place / "photos" / "dog" / "more").mkdir()
    said = say("run", "mnist/naive", *QUICK, "--data", "photos")
    assert said.code == 0
    sentence = "not read, in the class folders: 3 files that are no images here (.heic, .cr2) and 1 deeper folder"
    assert f"autorecall: {sentence}\n" in said.err


def test_runs_on_other_images_are_rows_of_their_own(say: Say, place: Path) -> None:
    """Though no setting tells them apart."""
    for day, seed in (("monday", "0"), ("tuesday", "1")):
        lay(place / day, 4 + int(seed), ("cat", "dog"))
        assert say("run", "mnist/naive", *QUICK, "--data", day, "--seed", seed, "--out", f"all/{day}").code == 0
    rows = json.loads(say("show", "all", "--json").out)
    assert [len(row["seeds"]) for row in rows] == [1, 1]
    assert len({row["changed"]["data"] for row in rows}) == 2


def test_names_that_are_no_text_and_names_that_are_formulas(say: Say, place: Path) -> None:
    lay(place / "photos", 4, ("=cmd|x", "dog"))
    assert say("run", "mnist/naive", *QUICK, "--data", "photos").code == 0
    (run,) = place.glob("runs/folder/*/seed-0")
    odd = os.fsdecode(b"caf\xe9.png")
    shutil.copy(next((place / "photos" / "dog").iterdir()), place / odd)
    assert say("predict", str(run), odd, "--top", "2", "--csv", "found.csv").code == 0
    text = (place / "found.csv").read_text()
    assert "'=cmd|x" in text
    assert "caf\\udce9.png" in text
    parent = run.with_name(os.fsdecode(b"\xff"))
    shutil.copytree(run, parent)
    assert say("learn", str(parent), "--data", "photos", "--out", "child").code == 0
    assert (place / "child" / "result.json").exists()
