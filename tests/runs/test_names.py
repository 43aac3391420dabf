"""The folder of a run: its name says what differs from the preset, and no two runs share one."""

from __future__ import annotations

import hashlib
import itertools
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from autorecall import DescriptorConfig
from autorecall.config import RunConfig
from autorecall.presets import PRESETS
from autorecall.runs.names import run_folder
from autorecall.storage.files import write_json
from autorecall.storage.formats import stamped
from autorecall.storage.schema import to_json, with_field

OUT = Path("runs")


def changed(preset: str, **changes: object) -> RunConfig:
    """The config of a preset with some fields changed; two underscores stand for a dot."""
    config = PRESETS[preset].config
    for name, value in changes.items():
        config = with_field(config, name.replace("__", "."), value)
    return config


def named(preset: str, **changes: object) -> str:
    """The name of its folder."""
    return str(run_folder(OUT, preset, changed(preset, **changes)))


def test_a_network_of_another_kind_is_named_with_what_is_unusual_for_it() -> None:
    plain = named("mnist/naive", network=DescriptorConfig())
    assert plain == "runs/mnist/naive+network=descriptor/seed-0"
    as_usual = named("mnist/naive", network=DescriptorConfig(hidden=(400, 400)))  # as the perceptron has them
    assert as_usual == "runs/mnist/naive+network=descriptor+hidden=400,400/seed-0"


@pytest.mark.parametrize("preset", PRESETS)
def test_an_unchanged_preset_has_the_folder_of_its_name(preset: str) -> None:
    assert named(preset) == f"runs/{preset}/seed-0"


@pytest.mark.parametrize(
    "changes",
    [{"threads": 2}, {"device": "cuda:1"}, {"checkpoint_seconds": 1.0}, {"curve_points": 0}],
    ids=lambda changes: next(iter(changes)),
)
def test_how_a_run_is_computed_is_not_part_of_the_name(changes: dict[str, object]) -> None:
    assert named("mnist/arm", **changes, seed=7) == "runs/mnist/arm/seed-7"


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"fraction": 0.1}, "arm+fraction=0.1"),
        ({"fraction": 0.1, "learner__ascent_steps": 20}, "arm+ascent_steps=20+fraction=0.1"),  # as fields are ordered
        ({"learner__l2_norm": 1e-05}, "arm+l2_norm=1e-05"),
        ({"learner__lag__every": 3}, "arm+every=3"),
        ({"learner__accumulate_repeats": True}, "arm+accumulate_repeats=true"),
        ({"network__hidden": (16, 8)}, "arm+hidden=16,8"),
        ({"network__hidden": (16,)}, "arm+hidden=16"),
        ({"stream__class_order": tuple(range(9, -1, -1))}, "arm+class_order=9,8,7,6,5,4,3,2,1,0"),
        ({"split": "val"}, "arm+split=val"),
        ({"test_images": 100}, "arm+test_images=100"),
        ({"stream__tasks": (5, 3, 2)}, "arm+tasks=5,3,2"),
        ({"stream__order": ("cat", "dog")}, "arm+order=cat,dog"),
    ],
)
def test_the_name_says_what_differs_from_the_preset(changes: dict[str, object], name: str) -> None:
    assert named("mnist/arm", **changes) == f"runs/mnist/{name}/seed-0"


def test_a_setting_of_the_preset_that_is_unset_is_said() -> None:
    assert named("cifar10/naive", stream__order_seed=None) == "runs/cifar10/naive+order_seed=none/seed-0"


def test_a_word_that_ends_two_settings_does_not_stand_alone() -> None:
    assert named("mnist/gen", network__hidden=(16,)) == "runs/mnist/gen+network.hidden=16/seed-0"
    assert named("mnist/gen", learner__vae__hidden=16) == "runs/mnist/gen+learner.vae.hidden=16/seed-0"
    assert named("mnist/gen", learner__vae__latents=16) == "runs/mnist/gen+latents=16/seed-0"


def test_another_dataset_is_another_folder_whose_name_says_of_what_the_preset_is() -> None:
    """The methods of two datasets may have one name, and the same data."""
    folder = named("cifar10/arm", dataset="folder", image_size=8)
    assert folder == "runs/folder/arm+preset=cifar10+image_size=8/seed-0"
    assert named("mnist/arm", dataset="folder", image_size=8) != folder


def test_shares_and_skipping_are_part_of_the_name() -> None:
    folder = named("mnist/arm", dataset="folder", test_share=0.3, val_share=0.1, skip_broken=True)
    assert folder == "runs/folder/arm+preset=mnist+test_share=0.3+val_share=0.1+skip_broken=true/seed-0"


ORDERS: list[tuple[str, ...]] = [
    ("a b", "c"),
    ("a-b", "c"),
    ("a", "b", "c"),
    ("a,b", "c"),
    ("a", "b,c"),
    ("a;b", "c"),
    ("$(rm)", "c"),
    ("ü", "c"),
    ("猫", "c"),
    ("", "c"),
    ("none",),
    ("\ud800", "c"),
    ("../../x", "c"),
]


def test_no_two_orders_of_any_names_share_a_folder_and_none_needs_quoting() -> None:
    folders = [named("mnist/arm", stream__order=order) for order in ORDERS]
    assert len(set(folders)) == len(folders)
    for folder in folders:
        assert shlex.quote(folder.replace("=", "")) == folder.replace("=", "")
        assert len(Path(folder).relative_to(OUT).parts) == 3
        assert ".." not in Path(folder).parts


def test_a_run_of_no_preset_has_the_folder_of_its_own_name() -> None:
    config = replace(PRESETS["mnist/arm"].config, fraction=0.5)
    assert run_folder(OUT, "own/thing", config) == OUT / "mnist" / "thing" / "seed-0"


# One folder for one run

VALUES: dict[str, list[object]] = {
    "learner.learning_rate": [1e-300, 1e-30, 1e-16, 1e-05, 0.1, 1.0, 1e5, 1e15, 1e16, 1e30, 1e300],
    "learner.diversity": [0.0, 1e-30, 1e30, 16.0],
    "network.hidden": [(1,), (1, 1), (11,), (400, 40), (40, 400)],
    "stream.class_pool": [(), (500,) * 10],
    "fraction": [0.1, 0.01, 1.0],
    "split": ["test", "val"],
}


@pytest.mark.parametrize("field", VALUES)
def test_no_two_values_share_a_folder(field: str) -> None:
    folders = [run_folder(OUT, "mnist/arm", with_field(changed("mnist/arm"), field, value)) for value in VALUES[field]]
    assert len(set(folders)) == len(folders)


def test_no_two_runs_share_a_folder_however_long_their_names_are() -> None:
    long = list[str]()
    for widths, steps in itertools.product(itertools.permutations(range(1, 5)), (5, 20)):
        long.append(named("mnist/arm", network__hidden=(100,) * 30 + widths, learner__ascent_steps=steps))
    assert len(set(long)) == len(long)
    for folder in long:
        name = Path(folder).parent.name
        assert len(name) == 100
        assert re.fullmatch(r"arm\+hidden=(100,)+[10]*\+[0-9a-f]{8}", name)


def test_a_long_name_is_the_same_every_time() -> None:
    """In every process, and in every version: the run is looked for there."""
    name = named("mnist/arm", network__hidden=(100,) * 30)
    whole = "arm+hidden=" + ",".join(["100"] * 30)
    checksum = hashlib.sha256(whole.encode()).hexdigest()[:8]
    assert name == f"runs/mnist/{whole[:91]}+{checksum}/seed-0"
    assert named("mnist/arm", network__hidden=(100,) * 22) == "runs/mnist/arm+hidden=" + "100," * 21 + "100/seed-0"


@pytest.mark.parametrize("preset", ["mnist/arm", "mnist/gen-mir", "cifar10/gem", "miniimagenet/er-500"])
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_no_name_needs_quoting_in_a_shell(preset: str, device: str) -> None:
    rates = [changed(preset, learner__learning_rate=rate, device=device) for rate in (1e-30, 0.5, 1e30)]
    if preset == "mnist/arm":
        rates += [changed(preset, network__hidden=(1, 2), learner__repeats=3)]
    for config in rates:
        folder = run_folder(OUT, preset, config)
        assert shlex.quote(str(folder).replace("=", "")) == str(folder).replace("=", "")  # = is special in front only
        assert len(folder.relative_to(OUT).parts) == 3


# Folders of earlier versions


def hold(folder: Path, preset: str, config: RunConfig) -> None:
    """As if a run of this config were there."""
    folder.mkdir(parents=True)
    write_json(folder / "config.json", stamped({"preset": preset} | to_json(config)))


def test_a_run_in_the_folder_of_the_unchanged_preset_is_found_there(tmp_path: Path) -> None:
    before = tmp_path / "mnist" / "arm" / "seed-3"
    half = changed("mnist/arm", fraction=0.5, seed=3)
    hold(before, "mnist/arm", half)
    assert run_folder(tmp_path, "mnist/arm", half) == before
    assert run_folder(tmp_path, "mnist/arm", replace(half, threads=1, curve_points=0)) == before
    assert run_folder(tmp_path, "mnist/arm", changed("mnist/arm", seed=3)) == before  # and refused there


def test_a_run_with_other_settings_is_not_looked_for_there(tmp_path: Path) -> None:
    hold(tmp_path / "mnist" / "arm" / "seed-3", "mnist/arm", changed("mnist/arm", fraction=0.5, seed=3))
    for changes, name in (
        ({"fraction": 0.25, "seed": 3}, "arm+fraction=0.25/seed-3"),
        ({"fraction": 0.5, "seed": 4}, "arm+fraction=0.5/seed-4"),
        ({"fraction": 0.5, "seed": 3, "split": "val"}, "arm+fraction=0.5+split=val/seed-3"),
        ({"seed": 3, "split": "val"}, "arm+split=val/seed-3"),
    ):
        assert run_folder(tmp_path, "mnist/arm", changed("mnist/arm", **changes)) == tmp_path / "mnist" / name


def test_a_run_of_another_preset_is_not_looked_for_there(tmp_path: Path) -> None:
    half = changed("cifar10/arm", fraction=0.5)
    hold(tmp_path / "cifar10" / "arm" / "seed-0", "own/arm", half)
    assert run_folder(tmp_path, "cifar10/arm", half) == tmp_path / "cifar10" / "arm+fraction=0.5" / "seed-0"


def test_the_folder_of_its_own_name_comes_first(tmp_path: Path) -> None:
    half = changed("mnist/arm", fraction=0.5)
    for name in ("arm", "arm+fraction=0.5"):
        hold(tmp_path / "mnist" / name / "seed-0", "mnist/arm", half)
    assert run_folder(tmp_path, "mnist/arm", half) == tmp_path / "mnist" / "arm+fraction=0.5" / "seed-0"


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"preset": "mnist/arm"}'])
def test_a_damaged_config_there_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "mnist" / "arm" / "seed-0").mkdir(parents=True)
    (tmp_path / "mnist" / "arm" / "seed-0" / "config.json").write_text(content)
    folder = run_folder(tmp_path, "mnist/arm", changed("mnist/arm", fraction=0.5))
    assert folder == tmp_path / "mnist" / "arm+fraction=0.5" / "seed-0"
