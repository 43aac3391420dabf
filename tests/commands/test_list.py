"""`autorecall list`: the presets, all of them or those of a dataset."""

from __future__ import annotations

import pytest

from autorecall.presets import PRESETS

from .worlds import Said, Say, refused


def test_the_presets_are_printed_one_per_line(say: Say) -> None:
    assert say("list") == Said(0, "".join(f"{name}\n" for name in PRESETS), "")


@pytest.mark.parametrize("dataset", ["mnist", "cifar10", "miniimagenet"])
def test_a_dataset_chooses_its_own(say: Say, dataset: str) -> None:
    expected = [name for name in PRESETS if name.startswith(f"{dataset}/")]
    assert len(expected) >= 10
    assert say("list", dataset) == Said(0, "".join(f"{name}\n" for name in expected), "")


@pytest.mark.parametrize("word", ["all", "mnist/", "MNIST", "cifar", "folder", "x" * 1000])
def test_a_dataset_without_presets_is_refused(say: Say, word: str) -> None:
    said = say("list", word)
    refused(said, "there is no preset for the dataset ", "; expected one of mnist, cifar10, miniimagenet\n")
    assert len(said.err) < 300


def test_two_datasets_are_refused(say: Say) -> None:
    said = say("list", "mnist", "cifar10")
    assert (said.code, said.out) == (2, "")
    assert "cifar10" in said.err
