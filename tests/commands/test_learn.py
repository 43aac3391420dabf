"""`autorecall learn`: from a folder of images to a model, and another day to one that knows more."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from autorecall import DataError, from_arrays, from_folder, load_model, run
from autorecall.data import Dataset, load
from autorecall.presets import PRESETS
from autorecall.runs.another_day import joined_classes, learn, relabelled

from .worlds import FILES, Say, files, read, refused, times

RUN = "runs/folder/arm+preset=mnist+hidden=32+image_size=28/seed-0"
OPTIONS = ["--dataset=folder", "--data=monday", "--image-size=28", "--network.hidden", "32", "--curve-points=0"]


@pytest.fixture(scope="session")
def many_digits() -> Dataset:
    """The embedded digits."""
    return load("mnist")


def write(place: Path, digits: Dataset, labels: tuple[int, ...], each: int) -> None:
    """Real digits as files, in folders named after them."""
    for part, split in (("train", digits.train), ("test", digits.test)):
        for label in labels:
            folder = place / part / f"digit {label}"
            folder.mkdir(parents=True)
            for number, image in enumerate(split.inputs[split.labels == label][: each if part == "train" else 10]):
                Image.fromarray(image[0]).save(folder / f"{number}.png")


@pytest.fixture
def days(place: Path, many_digits: Dataset) -> Path:
    """Four digits on Monday, two on Tuesday, of which one is new, and one on Wednesday."""
    write(place / "monday", many_digits, (0, 1, 2, 3), 60)
    write(place / "tuesday", many_digits, (4, 1), 40)
    write(place / "wednesday", many_digits, (5,), 40)
    return place


def test_a_run_goes_on_with_new_classes_and_on_again(say: Say, days: Path) -> None:
    assert say("run", "mnist/arm", *OPTIONS).code == 0
    said = say("learn", RUN, "--data", "tuesday", "--test-data", "monday/test")
    assert (said.code, said.err) == (0, "")
    child = days / f"{RUN}+tuesday"
    assert files(child) == FILES | {"learner.safetensors"}
    result = json.loads((child / "result.json").read_text())
    assert result["parent"] == RUN
    assert result["tasks"] == [["digit 0", "digit 2", "digit 3"], ["digit 1", "digit 4"]]
    first, second = result["accuracy_matrix"]
    assert first[1] <= 55  # of the two, one is not known yet
    assert second[1] > 20
    assert result["forgetting"] == first[0] - second[0]
    assert load_model(child).classes == ("digit 0", "digit 1", "digit 2", "digit 3", "digit 4")

    said = say("learn", str(child.relative_to(days)), "--data", "wednesday", "--out", "third")
    assert said.code == 0
    assert said.err.startswith("autorecall: no image of an earlier class is tested; give some with --test-data")
    assert read(days / "third" / "result.json")["tasks"] == [["digit 5"]]
    assert len(load_model(days / "third").classes) == 6
    said = say("predict", "third", "wednesday/test", "--top", "6")
    assert said.code == 0
    assert all("digit 5" in line for line in said.out.splitlines())

    shown = say("show", ".", "--json")
    assert (shown.code, shown.err) == (0, "")  # the same settings and seed, and yet no duplicates
    learned = [row["changed"].get("learned") for row in json.loads(shown.out)]
    assert {*learned} == {None, "third", "tuesday"}

    found = times(child)
    again = say("learn", RUN, "--data", "tuesday", "--test-data", "monday/test")
    assert (again.code, again.err) == (0, "")
    assert "already finished: " in again.out
    assert times(child) == found

    (days / "tuesday" / "train" / "digit 4" / "0.png").unlink()
    refused(say("learn", RUN, "--data", "tuesday", "--test-data", "monday/test"), "on other data")


@pytest.mark.parametrize("method", ["naive", "lwf", "arm", "adi"])
def test_a_model_will_do_for_methods_that_keep_nothing_else(say: Say, days: Path, method: str) -> None:
    assert say("run", f"mnist/{method}", *OPTIONS, "--fraction", "0.2", "--out", "out").code == 0
    (parent,) = (days / "out").glob("folder/*/seed-0")
    (parent / "learner.safetensors").unlink()
    said = say("learn", str(parent), "--data", "wednesday", "--out", "child", "--test-data", "monday")
    assert said.code == 0
    assert said.err == "autorecall: the run learned from monday, so only its test images were tested\n"
    rows = (days / "child" / "history.csv").read_text().splitlines()
    assert method == "naive" or "nan" not in rows[1].split(",")[3:]  # recalled or taught from its first batch


def test_other_methods_need_their_learner(say: Say, days: Path) -> None:
    words = ["run", "mnist/slda", "--dataset", "folder", "--data", "monday", "--curve-points", "0", "--out", "out"]
    assert say(*words).code == 0
    (parent,) = (days / "out").glob("folder/*/seed-0")
    assert say("learn", str(parent), "--data", "wednesday", "--test-data", "monday", "--out", "second").code == 0
    first, second = json.loads((days / "second" / "result.json").read_text())["accuracy_matrix"]
    assert second[0] > first[0] - 15  # its statistics were kept
    (parent / "learner.safetensors").unlink()
    refused(
        say("learn", str(parent), "--data", "wednesday", "--test-data", "monday", "--out", "third"),
        "did not keep its learner, without which SLDA cannot go on; make it again with --keep-learner --fresh",
    )
    assert not (days / "third").exists()


def test_a_run_on_digits_that_come_with_the_package_tests_them_all(say: Say, days: Path) -> None:
    assert say("run", "mnist/naive", "--curve-points", "0").code == 0
    shutil.move(days / "wednesday" / "train" / "digit 5", days / "wednesday" / "train" / "five")
    shutil.move(days / "wednesday" / "test" / "digit 5", days / "wednesday" / "test" / "five")
    said = say("learn", "runs/mnist/naive/seed-0", "--data", "wednesday")
    assert (said.code, said.err) == (0, "")
    tasks = json.loads((days / "runs/mnist/naive/seed-0+wednesday/result.json").read_text())["tasks"]
    assert tasks == [list("0123456789"), ["five"]]


def test_a_file_that_names_all_classes_is_learned_for_those_it_has_images_of(say: Say, place: Path) -> None:
    """Its test images may be of all of them."""
    rng = np.random.default_rng(0)

    def write(name: str, labels: list[int], tested: list[int]) -> None:
        arrays = {
            f"{part}_{key}": value
            for part, found in (("train", labels), ("test", tested))
            for key, value in (("x", rng.integers(0, 255, (len(found), 8, 8), dtype=np.uint8)), ("y", np.array(found)))
        }
        np.savez(place / name, classes=np.array(["cat", "dog", "owl"][: max(tested) + 1]), **arrays)  # type: ignore[arg-type]

    write("monday.npz", [0, 1] * 6, [0, 1])
    write("tuesday.npz", [2] * 6, [0, 1, 2])
    assert say("run", "mnist/naive", "--data", "monday.npz", "--curve-points", "0", "--out", "out").code == 0
    (parent,) = (place / "out").glob("npz/*/seed-0")
    said = say("learn", str(parent), "--data", "tuesday.npz")
    assert (said.code, said.err) == (0, "")
    assert read(parent.with_name("seed-0+tuesday") / "result.json")["tasks"] == [["cat", "dog"], ["owl"]]


def test_a_child_is_named_after_its_data(say: Say, days: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they are called, and from wherever it is made; a learner that was not kept is not there later."""
    assert say("run", "mnist/er-50", *OPTIONS, "--fraction", "0.1", "--keep-learner", "--out", "out").code == 0
    (parent,) = (days / "out").glob("folder/*/seed-0")
    for name in ("v1.0", "v1.1", "n" * 120):
        shutil.copytree(days / "wednesday", days / name)
        monkeypatch.chdir(parent)
        assert say("learn", ".", "--data", str(days / name)).code == 0
    children = {path.name[:20] for path in parent.parent.iterdir()} - {"seed-0"}
    assert children == {"seed-0+v1.0", "seed-0+v1.1", f"seed-0+{'n' * 13}"}
    words = ["learn", ".", "--data", str(days / "v1.0"), "--keep-learner"]
    refused(say(*words), "holds a finished run that did not keep its learner; --fresh runs it again")


def test_one_image_of_a_class_is_enough_to_test_it(say: Say, days: Path) -> None:
    assert say("run", "mnist/naive", *OPTIONS, "--fraction", "0.1", "--out", "out").code == 0
    (parent,) = (days / "out").glob("folder/*/seed-0")
    (days / "one" / "digit 0").mkdir(parents=True)
    shutil.copy(days / "monday" / "test" / "digit 0" / "0.png", days / "one" / "digit 0")
    (days / "one" / "digit 0" / "broken.png").write_text("no image")
    words = ["learn", str(parent), "--data", "wednesday", "--test-data", "one"]
    refused(say(*words), "cannot be read as an image")
    said = say(*words, "--skip-broken")
    assert said.code == 0
    assert "left out 1 image that cannot be read: digit 0/broken.png" in said.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("nowhere --data tuesday", "there is no folder nowhere; give that of a finished run"),
        ("monday --data tuesday", "there is no monday/model.safetensors"),
        (f"{RUN} --data nowhere", "nowhere does not exist"),
        (f"{RUN} --data empty", "empty holds 0 class folders"),
        (f"{RUN} --data tuesday --test-data wednesday", "which neither the run nor the data has"),
        (f"{RUN} --data flat --out flat/second", "--out flat/second lies among the class folders of --data, where it"),
        (f"{RUN} --data tuesday --test-data flat --out flat/second", "lies among the class folders of --test-data"),
        (f"{RUN} --data tuesday --out tuesday/train/second", "lies among the class folders of --data"),
        (f"{RUN} --data tuesday --out monday", "monday holds other files and no run of autorecall"),
    ],
)
def test_bad_use_gets_one_sentence_and_leaves_nothing(say: Say, days: Path, words: str, sentence: str) -> None:
    assert say("run", "mnist/arm", *OPTIONS, "--fraction", "0.1").code == 0
    (found,) = days.glob("runs/folder/*/seed-0")
    (days / RUN).parent.mkdir()
    shutil.copytree(found, days / RUN)
    (days / "empty").mkdir()
    shutil.copytree(days / "tuesday" / "train", days / "flat")
    before = files(days)
    said = say("learn", *words.split())
    assert said.code == 2
    assert sentence in said.err
    assert files(days) == before


def clusters(names: list[str]) -> Dataset:
    """Classes that are easy to tell apart."""
    labels = np.arange(60) % len(names)
    inputs = np.random.default_rng(0).normal(labels[:, None], 0.1, (60, 4)).astype(np.float32)
    return from_arrays((inputs, labels), (inputs, labels), classes=names)


def test_from_python_with_inputs_of_any_kind(tmp_path: Path) -> None:
    config = PRESETS["mnist/naive"].config
    run("mnist/naive", config, clusters(["a", "b"]), tmp_path / "first")
    result = learn(tmp_path / "first", clusters(["c", "d"]), tmp_path / "second")
    assert result.tasks == [["c", "d"]]
    assert load_model(tmp_path / "second").classes == ("a", "b", "c", "d")
    assert learn(tmp_path / "first", clusters(["c"])).parent == str(tmp_path / "first")
    with pytest.raises(DataError, match=r"has no config\.json; give the folder of a finished run"):
        learn(tmp_path, clusters(["c"]))


def test_from_python_tests_are_labelled_by_all_classes(tmp_path: Path) -> None:
    """However accents are written; a label of none of them is refused."""
    run("mnist/naive", PRESETS["mnist/naive"].config, clusters(["caf\u00e9", "tea"]), tmp_path / "first")
    new, tested = clusters(["cafe\u0301", "milk"]), clusters(["tea", "cafe\u0301", "milk"])
    classes = joined_classes(["caf\u00e9", "tea"], new.classes)
    assert classes == ("caf\u00e9", "tea", "milk")
    tests = relabelled(tested.test, tested.classes, classes)
    assert np.array_equal(tests.labels, np.array([1, 0, 2])[tested.test.labels])
    result = learn(tmp_path / "first", new, tests=tests)
    assert result.tasks == [["tea"], ["caf\u00e9", "milk"]]
    for wrong in (-1, 3):
        with pytest.raises(DataError, match=f"tested label 0 is {wrong}; expected 0 to 2, one number per class"):
            learn(tmp_path / "first", new, tests=replace(tests, labels=np.full(60, wrong)))


def test_what_was_learned_on_any_day_is_not_tested(say: Say, days: Path) -> None:
    """Only its test images are, however many days ago it was, and whatever the folder is called now."""
    assert say("run", "mnist/naive", *OPTIONS, "--fraction", "0.2", "--out", "out").code == 0
    (parent,) = (days / "out").glob("folder/*/seed-0")
    assert say("learn", str(parent), "--data", "tuesday", "--test-data", "monday", "--out", "second").code == 0
    shutil.move(parent, days / "elsewhere")
    shutil.move(days / "monday", days / "first")
    for tested, classes in (("first", 4), ("tuesday", 2)):
        child = f"child of {tested}"
        said = say("learn", "second", "--data", "wednesday", "--test-data", tested, "--out", child)
        assert said.code == 0
        assert said.err == f"autorecall: the run learned from {tested}, so only its test images were tested\n"
        names = read(days / child / "result.json")["tasks"]
        assert isinstance(names, list)
        assert (len(names[0]), names[1]) == (classes, ["digit 5"])
    said = say("learn", "second", "--data", "wednesday", "--test-data", "wednesday", "--out", "fourth")
    assert "the run learned from wednesday, so only its test images were tested" in said.err
    assert read(days / "fourth" / "result.json")["tasks"] == [["digit 5"]]
    assert say("learn", "second", "--data", "wednesday", "--out", "fifth").code == 0
    assert read(days / "fourth" / "result.json")["tested"] == read(days / "fifth" / "result.json")["tested"]


def test_what_was_learned_is_known_again_however_it_was_split(say: Say, days: Path) -> None:
    """With shares of its own, from the command line and from Python."""
    monday, tuesday = "monday/train", "tuesday/train"
    words = ["--dataset=folder", f"--data={monday}", "--image-size=28", "--test-share=0.5", "--curve-points=0"]
    assert say("run", "mnist/naive", *words, "--fraction=0.2", "--out=out").code == 0
    (typed,) = (days / "out").glob("folder/*/seed-0")
    config = replace(PRESETS["mnist/naive"].config, fraction=0.2, curve_points=0)
    run("mnist/naive", config, from_folder(monday, 28, test_share=0.5), "called", keep_learner=None)
    for first in (str(typed), "called"):
        second = f"second-{Path(first).name}"
        learn(first, from_folder(tuesday, 28, 0.4, 0.2, fewest_classes=1), second)
        for number, tested in enumerate((monday, tuesday)):
            said = say("learn", second, "--data=wednesday", "--test-data", tested, "--out", f"{second}-{number}")
            assert said.err == f"autorecall: the run learned from {tested}, so only its test images were tested\n"


def test_what_was_learned_but_for_broken_images_is_known_again(say: Say, days: Path) -> None:
    """On the same day, and on the day after."""
    assert say("run", "mnist/naive", *OPTIONS, "--fraction", "0.2", "--out", "out").code == 0
    (parent,) = (days / "out").glob("folder/*/seed-0")
    (days / "tuesday" / "train" / "digit 4" / "0.png").write_text("no image")
    sentence = "the run learned from tuesday, so only its test images were tested\n"
    tuesday = ["--data", "tuesday", "--test-data", "tuesday", "--skip-broken", "--out", "second"]
    assert say("learn", str(parent), *tuesday).err.endswith(sentence)
    said = say("learn", "second", "--data", "wednesday", "--test-data", "tuesday", "--out", "third")
    assert said.err == f"autorecall: {sentence}"


def noise(path: Path, labels: list[int], names: list[str], **how: int) -> None:
    """Arrays that nothing can be known about but by heart."""
    rng = np.random.default_rng(how.get("seed", 0))
    inputs = rng.integers(0, 255, (len(labels), 8, how.get("width", 8)), dtype=np.uint8)
    if how.get("floats"):
        inputs = inputs[:, None].astype(np.float32) / 255  # type: ignore[assignment]
    np.savez(path, x=inputs, y=np.array(labels), classes=np.array(names))


def test_arrays_that_were_learned_are_known_again(say: Say, place: Path) -> None:
    noise(place / "monday.npz", [0, 1] * 10, ["cat", "dog"])
    noise(place / "tuesday.npz", [0] * 10, ["owl"], seed=1)
    assert say("run", "mnist/naive", "--data", "monday.npz", "--curve-points", "0", "--out", "out").code == 0
    (parent,) = (place / "out").glob("npz/*/seed-0")
    said = say("learn", str(parent), "--data", "tuesday.npz", "--test-data", "monday.npz")
    assert said.err == "autorecall: the run learned from monday.npz, so only its test images were tested\n"


def test_arrays_to_test_may_be_one_of_a_class(say: Say, place: Path) -> None:
    noise(place / "monday.npz", [0, 1] * 10, ["cat", "dog"])
    noise(place / "tuesday.npz", [0] * 10, ["owl"], seed=1)
    noise(place / "one.npz", [0, 1], ["cat", "dog"], seed=2)
    with np.load(place / "one.npz") as one:
        np.savez(place / "only.npz", test_x=one["x"], test_y=one["y"], classes=one["classes"])
    assert say("run", "mnist/naive", "--data", "monday.npz", "--curve-points", "0", "--out", "out").code == 0
    (parent,) = (place / "out").glob("npz/*/seed-0")
    for tested in ("one", "only"):
        words = ["--data", "tuesday.npz", "--test-data", f"{tested}.npz", "--out", tested]
        said = say("learn", str(parent), *words)
        assert (said.code, said.err) == (0, "")
        assert read(place / tested / "result.json")["tasks"] == [["cat", "dog"], ["owl"]]


def test_bytes_and_floats_are_tested_on_one_scale(say: Say, place: Path) -> None:
    noise(place / "monday.npz", [0, 1] * 10, ["cat", "dog"])
    noise(place / "bytes.npz", [0] * 10, ["owl"], seed=1)
    noise(place / "floats.npz", [0] * 10, ["owl"], seed=1, floats=1)
    noise(place / "tested.npz", [0, 1] * 50, ["cat", "dog"], seed=2)
    assert say("run", "mnist/naive", "--data", "monday.npz", "--curve-points", "0", "--out", "out").code == 0
    (parent,) = (place / "out").glob("npz/*/seed-0")
    for new in ("bytes", "floats"):
        assert say("learn", str(parent), "--data", f"{new}.npz", "--test-data", "tested.npz", "--out", new).code == 0
    first, second = (read(place / new / "result.json")["accuracy_matrix"] for new in ("bytes", "floats"))
    assert first == second


def test_tests_of_another_shape_are_refused(say: Say, place: Path) -> None:
    noise(place / "monday.npz", [0, 1] * 10, ["cat", "dog"])
    noise(place / "tuesday.npz", [0] * 10, ["owl"], seed=1)
    noise(place / "wide.npz", [0, 1] * 2, ["cat", "dog"], width=9)
    assert say("run", "mnist/naive", "--data", "monday.npz", "--curve-points", "0", "--out", "out").code == 0
    (parent,) = (place / "out").glob("npz/*/seed-0")
    refused(
        say("learn", str(parent), "--data", "tuesday.npz", "--test-data", "wide.npz"),
        "the tested inputs have shape (1, 8, 9) but the model takes (1, 8, 8); give that shape",
    )


def test_seeds_that_learned_the_same_days_are_one_row(say: Say, place: Path) -> None:
    """And other days are another row, though the last one is the same."""
    for day, drawn in (("monday", 0), ("sunday", 3)):
        noise(place / f"{day}.npz", [0, 1] * 10, ["cat", "dog"], seed=drawn)
    noise(place / "tuesday.npz", [0] * 10, ["owl"], seed=1)
    for day, seed in (("monday", "0"), ("monday", "1"), ("sunday", "2")):
        words = ["--data", f"{day}.npz", "--seed", seed, "--curve-points", "0", "--out", f"{day}{seed}"]
        assert say("run", "mnist/naive", *words).code == 0
        (parent,) = (place / f"{day}{seed}").glob("npz/*/seed-*")
        assert say("learn", str(parent), "--data", "tuesday.npz").code == 0
    rows = json.loads(say("show", ".", "--json").out)
    assert sorted(row["seeds"] for row in rows if "learned" in row["changed"]) == [[0, 1], [2]]


def test_accents_may_be_letters_of_their_own(say: Say, place: Path) -> None:
    noise(place / "monday.npz", [0, 1] * 10, ["caf\u00e9", "tea"])
    noise(place / "tuesday.npz", [0, 1] * 10, ["cafe\u0301", "milk"], seed=1)
    assert say("run", "mnist/naive", "--data", "monday.npz", "--curve-points", "0", "--out", "out").code == 0
    (parent,) = (place / "out").glob("npz/*/seed-0")
    assert say("learn", str(parent), "--data", "tuesday.npz", "--out", "second").code == 0
    assert load_model(place / "second").classes == ("caf\u00e9", "tea", "milk")
