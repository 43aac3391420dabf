"""`autorecall bench` with tiny numbers: what it measures, how it counts, and what the command prints and writes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor, nn

from autorecall import ARM, ARMConfig, LagConfig, Learner, cli, data
from autorecall.commands import bench as command
from autorecall.commands import measure as bench
from autorecall.commands.measure import Iterations, LiteralARM, Overhead, Report, Timing
from autorecall.data import from_arrays
from autorecall.networks import MLPConfig, ResNet18Config
from autorecall.presets import PRESETS

CURVES = {
    "M, recalled images": (4, 30),
    "S, ascent steps": (1, 2),
    "N, real images": (2, 5),
    "classes": (10, 11),
    "image size": (16, 24),
}
MADE = Report(
    cifar10=Iterations(False, Timing(0.005, 0.004, 0.006), Timing(0.9, 0.85, 0.95), Timing(0.075, 0.07, 0.08)),
    mnist=Iterations(True, Timing(0.002, 0.002, 0.003), Timing(0.06, 0.05, 0.07), Timing(0.03, 0.02, 0.04)),
    overheads={"naive": Overhead(Timing(0.003, 0.002, 0.004), Timing(0.002, 0.001, 0.003))},
    others={"a step of ADI": Timing(0.7, 0.6, 0.8)},
    page_faults=12.0,
    growth_seconds={"M, recalled images": {10: Timing(0.5, 0.4, 0.6), 100: Timing(0.6, 0.5, 0.7)}},
    peak_memory_mb={"M=10": 40.0, "M=1000": 41.0},
    threads=2,
)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The presets that are measured, with little to do, and no data of this machine."""
    monkeypatch.delenv("AUTORECALL_DATA", raising=False)
    monkeypatch.setenv("AUTORECALL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bench, "CURVES", CURVES)
    for dataset in ("cifar10", "mnist"):
        for method in ("naive", "arm"):
            preset = PRESETS[f"{dataset}/{method}"]
            learner = preset.config.learner
            if isinstance(learner, ARMConfig):
                learner = replace(learner, recalled_images=learner.recalled_images // 5, ascent_steps=2)
            config = replace(preset.config, network=MLPConfig((8,)), learner=learner)
            monkeypatch.setitem(PRESETS, f"{dataset}/{method}", replace(preset, config=config))


def ignore(*_: object) -> None:
    """No progress."""


# Summaries


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([3.0], Timing(3.0, 3.0, 3.0)),
        ([4.0, 1.0], Timing(2.5, 1.0, 4.0)),
        ([3.0, 1.0, 2.0], Timing(2.0, 1.0, 3.0)),
        ([5.0, 1.0, 4.0, 2.0, 3.0], Timing(3.0, 2.0, 4.0)),
        ([float(n) for n in range(12, 0, -1)], Timing(6.5, 4.0, 9.0)),
    ],
)
def test_timing_is_the_median_between_its_quartiles(seconds: list[float], expected: Timing) -> None:
    assert Timing.of(seconds) == expected


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40))
def test_half_of_all_times_lie_between_the_quartiles(seconds: list[float]) -> None:
    timing = Timing.of(seconds)
    assert timing.low <= timing.seconds <= timing.high
    assert 2 * sum(timing.low <= each <= timing.high for each in seconds) >= len(seconds)
    assert Timing.of(seconds[::-1]) == timing


def test_ratios_are_those_of_the_medians() -> None:
    assert MADE.cifar10.speedup_over_literal == pytest.approx(12)
    assert MADE.cifar10.cost_over_naive == pytest.approx(15)


def test_report_has_its_ratios_under_dotted_names_and_is_json() -> None:
    values = json.loads(json.dumps(MADE.as_json(), allow_nan=False))
    for name in ("cifar10", "mnist"):
        measured = values[name]
        arm, literal, naive = (measured[key]["seconds"] for key in ("arm", "literal", "naive"))
        assert values[f"{name}.speedup_over_literal"] == measured["speedup_over_literal"] == literal / arm
        assert values[f"{name}.cost_over_naive"] == measured["cost_over_naive"] == arm / naive
    assert values["naive.observe_over_bare"] == values["overheads"]["naive"]["ratio"] == pytest.approx(1.5)
    assert values["page_faults"] == 12
    assert values["growth_seconds"]["M, recalled images"]["100"] == {"seconds": 0.6, "low": 0.5, "high": 0.7}
    assert values["peak_memory_mb"] == {"M=10": 40.0, "M=1000": 41.0}


# Iterations


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(("dataset", "real"), [("cifar10", False), ("mnist", True)])
def test_without_cifar10_images_are_made_and_that_is_said(dataset: str, real: bool) -> None:
    steps: list[None] = []
    found = bench.iterations(dataset, rounds=2, literal_rounds=1, progress=lambda: steps.append(None))
    assert found.real_data == real
    assert len(steps) == 5 * 2 + 1 + 2
    for timing in (found.naive, found.literal, found.arm):
        assert 0 < timing.low <= timing.seconds <= timing.high < 10


@pytest.mark.usefixtures("tiny")
def test_with_cifar10_its_images_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.default_rng(0).integers(0, 256, (90, 3, 32, 32), dtype=np.uint8)
    labels = np.arange(90) % 10
    made = from_arrays((images, labels), (images, labels))
    given: list[Tensor] = []

    def load(name: str, may_download: bool = True) -> data.Dataset:
        assert (name, may_download) == ("cifar10", False)
        return made

    def observe(learner: Learner, x: Tensor, y: Tensor) -> None:
        given.append(x)

    monkeypatch.setattr(data, "load", load)
    monkeypatch.setattr(Learner, "observe", observe)
    assert bench.iterations("cifar10", 1, 1, ignore).real_data
    known = {(image / np.float32(255)).tobytes() for image in images}
    assert all(image.numpy().tobytes() in known for x in given for image in x)


@pytest.mark.usefixtures("tiny")
def test_contenders_take_turns_and_literal_arm_is_literal(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def observe(learner: Learner, x: Tensor, y: Tensor) -> None:
        order.append(type(learner).__name__)

    monkeypatch.setattr(Learner, "observe", observe)
    bench.iterations("cifar10", 4, 2, ignore)
    # Timed, and twice before the first and after each turn of literal ARM, which comes twice a turn.
    assert Counter(order) == {"Naive": 20 + 6, "ARM": 4 + 6, "LiteralARM": 2 * 2}
    first, second = (index for index, name in enumerate(order) if name == "LiteralARM" and order[index - 1] == name)
    assert Counter(order[first:second])["Naive"] == 10 + 2  # spread evenly


@pytest.mark.usefixtures("tiny")
def test_every_timed_iteration_of_arm_recalls(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers: list[dict[str, float]] = []
    learn = ARM.learn

    def listening(learner: ARM, x: Tensor, y: Tensor) -> dict[str, float]:
        numbers.append(learn(learner, x, y))
        return numbers[-1]

    monkeypatch.setattr(ARM, "learn", listening)
    bench.iterations("mnist", 2, 1, ignore)
    assert len(numbers) == 2 + 2 + 2 + 2  # ARM, its warm-up twice, and literal ARM with its own
    assert all(np.isfinite(list(step.values())).all() for step in numbers)


# Beside a bare loop, and elsewhere


def test_abare_loop_learns_what_naive_sgd_learns() -> None:
    config = PRESETS["mnist/naive"].config
    learner, x, y = (
        config.learner.build(bench._network(config, (1, 28, 28)), 0),
        torch.rand(10, 1, 28, 28),
        torch.arange(10),
    )
    step = bench.bare_loop(config, replays=False)
    for _ in range(3):
        assert step(x, y) == [learner.observe(x, y)["loss"]]


@pytest.mark.parametrize("row", ["mnist/naive", "mnist/er-50"])
def test_abare_loop_makes_as_many_passes(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config, passes = PRESETS[row].config, list[int]()
    learner = bench._learner(config)
    step = bench.bare_loop(config, replays=row != "mnist/naive")
    x, y = torch.rand(10, 1, 28, 28), torch.arange(10)
    for _ in range(8):
        learner.observe(x, y)
    linear = nn.functional.linear

    def counted(given: Tensor, *rest: Tensor) -> Tensor:
        passes.append(len(given))
        return linear(given, *rest)

    monkeypatch.setattr(nn.functional, "linear", counted)
    found = []
    for observe in (learner.observe, step):
        passes.clear()
        observe(x, y)
        found.append(list(passes))
    assert found[0] == found[1]
    assert len(found[0]) == (3 if row == "mnist/naive" else 6)


def test_overheads_are_ratios_of_a_learner_and_a_loop() -> None:
    steps: list[None] = []
    found = bench.overheads(lambda: steps.append(None), rounds=10)
    assert {*found} == {"naive", "er"}
    assert len(steps) == 2
    for overhead in found.values():
        assert 0 < overhead.bare.low <= overhead.bare.high < 10
        assert overhead.ratio == overhead.observe.seconds / overhead.bare.seconds


def test_other_steps_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, of in (("cifar10/adi", {"recalled_images": 12, "ascent_steps": 1}), ("mnist/gen-mir", {"groups": 1})):
        preset = PRESETS[name]
        learner = replace(preset.config.learner, **of)
        network = MLPConfig((8,)) if name == "cifar10/adi" else preset.config.network
        config = replace(preset.config, learner=learner, network=network)
        monkeypatch.setitem(PRESETS, name, replace(preset, config=config))
    found = bench.others(ignore, repeats=1)
    assert len(found) == 3
    assert all(0 < timing.seconds < 60 for timing in found.values())


@pytest.mark.usefixtures("tiny")
def test_page_faults_are_counted() -> None:
    pytest.importorskip("resource")
    found = bench.page_faults(ignore, repeats=2)
    assert found is not None
    assert 0 <= found < 1e6


# Growth, memory and speed

linux_only = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells of peaks")


@pytest.mark.usefixtures("tiny")
def test_growth_is_measured_for_every_size() -> None:
    steps: list[None] = []
    curves = bench.growth(lambda: steps.append(None), repeats=1)
    assert {name: tuple(curve) for name, curve in curves.items()} == CURVES
    assert all(0 < timing.seconds < 10 for curve in curves.values() for timing in curve.values())
    assert len(steps) == 2 * len(CURVES)


@pytest.mark.usefixtures("tiny")
def test_growth_varies_one_size_and_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images, steps, batch, classes and side, as the learner meets them."""
    met: list[tuple[int, ...]] = []

    def observe(learner: ARM, x: Tensor, y: Tensor) -> None:
        classes = [module for module in learner.network.modules() if isinstance(module, nn.Linear)][-1].out_features
        met.append((learner.config.recalled_images, learner.config.ascent_steps, len(x), classes, x.shape[-1]))
        assert y.max() < classes

    monkeypatch.setattr(Learner, "observe", observe)
    bench.growth(ignore, repeats=1)
    usual = (100, 10, 10, 10, 32)
    expected = [
        (*usual[:place], size, *usual[place + 1 :]) for place, sizes in enumerate(CURVES.values()) for size in sizes
    ]
    assert Counter(met) == {sizes: 2 * expected.count(sizes) for sizes in expected}


def test_curves_cover_the_sizes_of_the_paper() -> None:
    for sizes, usual in zip(bench.CURVES.values(), (100, 10, 10, 10, 32), strict=True):
        assert usual in sizes
        assert list(sizes) == sorted(set(sizes))


@linux_only
def test_memory_is_asked_of_a_process_for_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def peak(images: int, iterations: int, tasks: int, literal: bool) -> float:
        asked.append(images)
        return 1000.0 * literal + images + tasks

    monkeypatch.setattr(bench, "_peak", peak)
    steps: list[None] = []
    found = bench.peak_memory(lambda: steps.append(None))
    shown = {"M=10": 11.0, "M=100": 101.0, "M=1000": 1001.0, "M=100, 10 tasks": 110.0, "literal, M=100": 1101.0}
    assert found == shown
    assert len(steps) == len(asked) == 5


@linux_only
@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(("iterations", "tasks", "copies"), [(0, 1, 0), (1, 1, 1), (4, 2, 2), (3, 3, 3)])
def test_peak_is_printed_after_so_many_iterations_and_tasks(
    iterations: int,
    tasks: int,
    copies: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learners: list[ARM] = []
    learn = ARM.learn

    def listening(learner: ARM, x: Tensor, y: Tensor) -> dict[str, float]:
        learners.append(learner)
        return learn(learner, x, y)

    monkeypatch.setattr(ARM, "learn", listening)
    bench.print_peak(10, iterations, tasks, False)
    assert 0 <= float(capsys.readouterr().out) < 1000
    assert len(learners) == iterations
    assert not learners or learners[0].teacher.boundaries.tasks == copies


@linux_only
@pytest.mark.usefixtures("tiny")
def test_peak_of_a_process_of_its_own_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code is run here, because to load torch again would take seconds."""

    def run(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(words[-1], {})
        return subprocess.CompletedProcess(words, 0, said.getvalue())

    monkeypatch.setattr(subprocess, "run", run)
    assert 0 <= bench._peak(10, 1, 1, False) < 1000


@pytest.mark.usefixtures("tiny")
def test_the_whole_benchmark_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "seconds_of", lambda work: 0.5)
    monkeypatch.setattr(bench, "_peak", lambda *_: 300.0)
    told: dict[str, list[float]] = {}
    threads = torch.get_num_threads()
    report = bench.measure(lambda what, share: told.setdefault(what, []).append(share))
    assert torch.get_num_threads() == threads
    assert all(shares == sorted(shares) for shares in told.values())
    assert {(shares[0], shares[-1]) for shares in told.values()} == {(0, 1)}
    assert report.cifar10.speedup_over_literal == report.mnist.cost_over_naive == 1
    json.dumps(report.as_json(), allow_nan=False)


# The command


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """Type `autorecall bench …`, which finds the made report at once."""

    def measure(progress: Callable[[str, float], None]) -> Report:
        progress("something", 0)
        progress("something", 1)
        return MADE

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "measure", measure)
    return lambda *words: cli.dispatch(["bench", *words])


def row(lines: list[str], name: str) -> list[str]:
    """The cells of a printed table beside this name, put together where they take more than one line."""
    split = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]
    start = next(number for number, cells in enumerate(split) if cells[0] == name and len(cells) > 1)
    cells = split[start]
    for more in split[start + 1 :]:
        if len(more) != len(cells) or more[0]:
            break
        cells = [f"{cell} {rest}".strip() for cell, rest in zip(cells, more, strict=True)]
    return cells


def test_bench_prints_tables(say: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert say() == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    lines = printed.out.splitlines()
    assert row(lines, "CIFAR10") == [
        "CIFAR10",
        "5.0 (4.0-6.0)",
        "900.0 (850.0-950.0)",
        "75.0 (70.0-80.0)",
        "15.0",
        "12.0",
        "made",
    ]
    assert row(lines, "MNIST")[-3:] == ["15.0", "2.0", "real"]
    assert row(lines, "ms") == ["ms", "500", "600"]
    for sentence in (
        "peak memory of an iteration, M=1000: 41 MB",
        "medians and quartiles within one run, 2 threads",
    ):
        assert sentence in lines
    assert list(tmp_path.iterdir()) == []


def test_bench_writes_its_numbers_and_a_picture(say: Callable[..., int], tmp_path: Path) -> None:
    assert say("--json", "new/folder/costs.json") == 0
    folder = tmp_path / "new" / "folder"
    assert sorted(path.name for path in folder.iterdir()) == ["costs.json", "costs.png"]
    assert json.loads((folder / "costs.json").read_text(encoding="utf-8")) == json.loads(json.dumps(MADE.as_json()))
    with Image.open(folder / "costs.png") as picture:
        assert picture.format == "PNG"
        assert min(picture.size) > 100


def not_at_all(progress: Callable[[str, float], None]) -> Report:
    raise AssertionError("measured for two minutes, in vain")


@pytest.mark.parametrize(
    "target",
    [
        "file/costs.json",
        pytest.param(
            "shut/costs.json",
            marks=pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may write anywhere"),
        ),
    ],
)
def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_measured(
    target: str,
    say: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "measure", not_at_all)
    (tmp_path / "file").touch()
    (tmp_path / "shut").mkdir(mode=0o500)
    assert say("--json", target) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (sentence,) = printed.err.splitlines()
    assert sentence.startswith("autorecall: cannot ")
    assert target.split("/")[0] in sentence


def test_a_refused_folder_is_blamed_on_the_right_option(
    say: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    say("--json", "file/costs.json")
    assert "--out" not in capsys.readouterr().err


def test_a_folder_in_place_of_the_file_is_refused_before_anything_is_measured(
    say: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "measure", not_at_all)
    (tmp_path / "folder").mkdir()
    assert say("--json", "folder") == 2


def test_a_name_that_ends_like_the_picture_is_refused_before_anything_is_measured(
    say: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "measure", not_at_all)
    assert say("--json", "costs.png") == 2
    assert list(tmp_path.iterdir()) == []


def test_literal_arm_agrees_with_arm() -> None:
    """The contender that ARM is compared with does the same work: one batch, in double precision."""
    config = ARMConfig(recalled_images=12, ascent_steps=3, lag=LagConfig("every", 2, start=1))
    networks = [ResNet18Config(8).build((3, 16, 16), 4).double() for _ in range(2)]
    networks[1].load_state_dict(networks[0].state_dict())
    fast, literal = ARM(networks[0], config), LiteralARM(networks[1], config)
    generator = torch.Generator().manual_seed(0)
    for labels in (torch.arange(6) % 2, 2 + torch.arange(6) % 2):
        x = torch.rand(6, 3, 16, 16, generator=generator, dtype=torch.float64)
        numbers, expected = fast.observe(x, labels), literal.observe(x, labels)
    assert numbers == pytest.approx(expected, rel=1e-9, nan_ok=True)
