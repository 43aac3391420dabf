"""Outputs that are added later: what was learned stays, for every method; and networks that know something already."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from autorecall import ADI, ARM, ARMConfig, LagConfig, Learner, LwF, LwFConfig, Naive, load, save
from autorecall.errors import InputError
from autorecall.networks import GatedMLPConfig
from autorecall.presets import PRESETS

from .worlds import CLASSES, TAUGHT, Make, any_method, assert_same, batch, conv, every_network, learner, mlp, observe

MORE = CLASSES + 3


def new_class(number: int) -> tuple[Tensor, Tensor]:
    """A batch of a class that was not there before."""
    x, y = batch(number)
    return x, torch.full_like(y, MORE - 1)


@every_network
@any_method
def test_outputs_are_added_and_no_image_changes_its_class(method: str, make: Make) -> None:
    student = learner(method, make())
    observe(student, 5)
    x = batch(9, 40)[0]
    before = student.predict(x)
    student.grow(MORE)
    after = student.predict(x)
    assert after.shape == (40, MORE)
    assert torch.equal(after.argmax(1), before.argmax(1))
    torch.testing.assert_close(after[:, :CLASSES], before, rtol=0, atol=1e-12)
    for number in range(6):
        student.observe(*new_class(number))
    assert student.predict(x).softmax(1)[:, -1].mean() > after.softmax(1)[:, -1].mean() + 0.02


@any_method
def test_a_grown_learner_is_saved_and_goes_on_bit_for_bit(method: str, tmp_path: Path) -> None:
    first, second = learner(method, mlp()), learner(method, mlp(), seed=5)
    observe(first, 5)
    first.grow(MORE)
    first.observe(*new_class(5))
    second.grow(MORE)
    save(first, tmp_path / "learner")
    load(second, tmp_path / "learner")
    for number in range(6, 9):
        assert_same(second.observe(*new_class(number)), first.observe(*new_class(number)))
    assert_same(second.state_dict(), first.state_dict())


def wide() -> nn.Module:
    """The perceptron with more outputs."""
    network = mlp()
    assert isinstance(network, nn.Sequential)
    network[-1] = nn.Linear(7, MORE).double()
    return network


@any_method
def test_a_state_with_fewer_outputs_is_loaded_as_if_it_had_grown(method: str, tmp_path: Path) -> None:
    first, second = learner(method, mlp()), learner(method, wide(), seed=5)
    observe(first, 5)
    save(first, tmp_path / "learner")
    load(second, tmp_path / "learner")
    first.grow(MORE)
    x = batch(9, 20)[0]
    assert_same(second.predict(x), first.predict(x))
    save(second, tmp_path / "again")
    for number in range(5, 8):
        assert_same(second.observe(*new_class(number)), first.observe(*new_class(number)))
    assert_same(second.state_dict(), first.state_dict())


def test_a_learner_that_refuses_a_state_with_fewer_outputs_is_as_before(tmp_path: Path) -> None:
    first, second = learner("arm", mlp()), learner("arm", wide())
    observe(first)
    state = first.state_dict()
    state["generator"] = torch.zeros(3, dtype=torch.uint8)
    first.state_dict = lambda: state  # type: ignore[method-assign]
    save(first, tmp_path / "learner")
    before = copy.deepcopy(second.state_dict())
    with pytest.raises(InputError, match="does not fit this learner"):
        load(second, tmp_path / "learner")
    assert_same(second.state_dict(), before)
    second.observe(*new_class(0))


@pytest.mark.parametrize("momentum", [True, False])
def test_the_state_of_the_optimizer_is_kept(momentum: bool) -> None:
    """As if the output had been there, and never had a gradient."""
    network = mlp()
    optimizer = (
        torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
        if momentum
        else torch.optim.Adam(network.parameters(), lr=0.01)
    )
    student = Naive(network, optimizer=optimizer)
    observe(student)
    last = list(network.parameters())[-2]
    before = copy.deepcopy(dict(optimizer.state[last]))
    student.grow(MORE)
    assert any(p is last for group in optimizer.param_groups for p in group["params"])
    for name, value in optimizer.state[last].items():
        if isinstance(value, Tensor) and value.dim() == 2:
            assert torch.equal(value[:CLASSES], before[name])
            assert torch.equal(value[CLASSES:], torch.zeros(MORE - CLASSES, 7, dtype=torch.float64))
    student.observe(*new_class(0))


@any_method
def test_a_label_beyond_the_last_adds_outputs_if_that_is_allowed(method: str) -> None:
    asked, told = learner(method, mlp()), learner(method, mlp())
    asked.grows = True
    observe(asked)
    observe(told)
    told.grow(MORE)
    assert_same(asked.observe(*new_class(4)), told.observe(*new_class(4)))
    assert_same(asked.state_dict(), told.state_dict())


@any_method
def test_a_batch_that_grows_and_then_fails_leaves_no_trace(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    student = learner(method, mlp())
    student.grows = True
    observe(student)
    before = copy.deepcopy(student.state_dict())

    def fail(*_: object) -> None:
        raise InputError("no")

    monkeypatch.setattr(student, "learn", fail)
    with pytest.raises(InputError):
        student.observe(*new_class(4))
    monkeypatch.undo()
    assert_same(student.state_dict(), before)
    student.observe(*batch(4))


def test_a_label_beyond_the_last_is_refused_otherwise() -> None:
    student = learner("arm", mlp())
    with pytest.raises(InputError, match=r"label 8 .* add outputs with learner\.grow\(9\)"):
        student.observe(*new_class(0))


@pytest.mark.parametrize("outputs", [CLASSES - 1, 0, -1, 10**6, 7.0, True, None])
def test_other_numbers_of_outputs_are_refused(outputs: object) -> None:
    student = learner("naive", mlp())
    before = copy.deepcopy(student.state_dict())
    with pytest.raises(InputError, match="expected 6 to 100,000"):
        student.grow(outputs)  # type: ignore[arg-type]
    assert_same(student.state_dict(), before)


def test_a_label_that_must_be_a_mistake_does_not_grow_a_giant() -> None:
    student = learner("naive", mlp())
    student.grows = True
    x, y = batch(0)
    with pytest.raises(InputError, match="label 1000000 "):
        student.observe(x, torch.full_like(y, 10**6))


def test_a_layer_that_was_replaced_by_hand_is_refused_with_advice() -> None:
    network = mlp()
    student = learner("arm", network)
    observe(student)
    assert isinstance(network, nn.Sequential)
    network[-1] = nn.Linear(7, MORE).double()
    with pytest.raises(InputError, match=r"has 9 outputs now and had 6; .* use learner\.grow\(9\)"):
        student.observe(*new_class(0))


class Backwards(nn.Module):
    """Its last layer is defined first."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first = nn.Linear(7, CLASSES), nn.Linear(60, 7)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.first(x.flatten(1)).relu())
        return logits


class Named(Backwards):
    """And says so."""

    def output_layers(self) -> list[nn.Linear]:
        """Where logits come from."""
        return [self.last]


def test_a_network_can_say_which_layers_to_grow() -> None:
    student = learner("naive", Named())
    student.grow(MORE)
    student.observe(*new_class(0))
    assert student.predict(batch(0)[0]).shape[1] == MORE


def test_a_network_whose_last_layer_is_not_found_is_refused_unchanged() -> None:
    network = Backwards()
    student = learner("naive", network)
    student.grows = True
    observe(student)
    before = copy.deepcopy(student.state_dict())
    with pytest.raises(InputError, match="output_layers"):
        student.observe(*new_class(0))
    assert_same(student.state_dict(), before)


def test_nothing_is_grown_if_the_last_layer_is_not_found_or_has_no_weights_of_its_own() -> None:
    class Mixed(nn.Module):
        """Its logits come from what was defined first."""

        def __init__(self, outputs: int) -> None:
            super().__init__()
            self.out, self.body = nn.Linear(3, outputs), nn.Linear(60, 3)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.out(self.body(x.flatten(1)))
            return logits

    student = Naive(Mixed(CLASSES).double())
    student.observe(*batch(0))
    with pytest.raises(InputError, match=r"does not give the logits; give the network a method output_layers"):
        student.grow(MORE)
    student.observe(*batch(1))
    normed = nn.Sequential(nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(60, CLASSES))).double()
    student = Naive(normed)
    student.observe(*batch(0))
    with pytest.raises(InputError, match=r"cannot be added to a layer whose weights are computed from others"):
        student.grow(MORE)
    student.observe(*batch(1))


def test_gated_outputs_grow_in_both_parts() -> None:
    student = Naive(GatedMLPConfig(hidden=(8,)).build((2, 6, 5), CLASSES))
    student.grow(MORE)
    x, y = new_class(0)
    student.observe(x.float(), y)
    assert student.predict(x.float()).shape[1] == MORE


def test_a_network_without_linear_end_is_refused() -> None:
    student = Naive(nn.Sequential(nn.Conv2d(2, CLASSES, (6, 5)), nn.Flatten()))
    with pytest.raises(InputError, match=r"ends in Conv2d, not in an nn\.Linear"):
        student.grow(MORE)


# Networks that know something


def blobs(label: int, number: int, count: int = 10) -> tuple[Tensor, Tensor]:
    """Images that are brighter in a row of their own."""
    generator = torch.Generator().manual_seed(100 * label + number)
    x = torch.rand(count, 1, 6, 6, generator=generator)
    x[:, :, label] += 0.35
    return x.clamp(0, 1), torch.full((count,), label)


def small() -> nn.Module:
    """For six classes."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 32), nn.ReLU(), nn.Linear(32, 6))


def knowing(classes: int) -> nn.Module:
    """One that was trained on some of them."""
    network = small()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    for number in range(100):
        x, y = (torch.cat(parts) for parts in zip(*(blobs(c, number, 4) for c in range(classes)), strict=True))
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return network


def kept(student: Learner, classes: int) -> float:
    """The share of images of earlier classes that are still recognised."""
    found = [student.predict(blobs(c, 999, 50)[0]).argmax(1).eq(c).float().mean() for c in range(classes)]
    return float(sum(found)) / classes


def settings() -> ARMConfig:
    return ARMConfig(total_variation=0.0, recalled_images=30)


@pytest.mark.parametrize("trained", [True, (0, 1, 2, 3)])
def test_a_trained_network_recalls_from_its_first_batch(trained: bool | tuple[int, ...]) -> None:
    network = knowing(4)
    told, untold = ARM(copy.deepcopy(network), settings(), trained=trained), ARM(network, settings())
    assert kept(told, 4) > 0.8
    for number in range(60):
        numbers = told.observe(*blobs(4 + number % 2, number))
        assert numbers["recalled_loss"] == numbers["recalled_loss"]  # not nan: something was recalled
        untold.observe(*blobs(4 + number % 2, number))
    assert kept(told, 4) > 0.5 > 0.1 > kept(untold, 4)


@pytest.mark.parametrize("known", [torch.tensor([1, 0]), np.array([0, 1]), range(2), {0, 1}], ids=str)
def test_classes_that_are_known_may_come_as_anything(known: Any, tmp_path: Path) -> None:
    student = ARM(mlp(), ARMConfig(recalled_images=4, ascent_steps=1), trained=known)
    assert student.boundaries.seen_classes == {0, 1}
    student.observe(*batch(0))
    save(student, tmp_path / "learner")
    load(student, tmp_path / "learner")


@pytest.mark.parametrize(
    ("known", "sentence"),
    [
        (3, r"trained is 3; expected True, or the classes that the network knows"),
        (["cat"], r"trained is \['cat'\]; expected True"),
        ([-1], r"trained names the class -1; expected classes from 0 on"),
        ([0, 17], r"trained names the class 17 but the network has 6 outputs; expected classes from 0 to 5"),
    ],
    ids=str,
)
def test_classes_that_cannot_be_known_are_refused(known: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=f"^{sentence}"):
        ADI(mlp(), trained=known).observe(*batch(0))


def test_means_of_classes_that_were_learned_elsewhere_are_not_known() -> None:
    settings = ARMConfig(initial="shift", told=True, targets="told")
    with pytest.raises(InputError, match=r"^learner\.initial is shift, which moves images to class means"):
        ARM(mlp(), settings, trained=True)


@pytest.mark.parametrize("kind", [LwF, ADI])
def test_other_taught_learners_begin_at_once_as_well(kind: type[LwF] | type[ADI]) -> None:
    config = LwFConfig() if kind is LwF else None
    if kind is LwF:
        numbers = LwF(knowing(4), config, trained=True).observe(*blobs(4, 0))
    else:
        numbers = ADI(knowing(4), trained=[0, 1, 2, 3]).observe(*blobs(4, 0))
    assert numbers["distillation"] == numbers["distillation"]


@pytest.mark.parametrize("lag", [LagConfig("every", every=5, start=5), LagConfig("boundary"), LagConfig()])
def test_a_trained_network_recalls_at_once_whatever_the_policy(lag: LagConfig, tmp_path: Path) -> None:
    config = ARMConfig(total_variation=0.0, lag=lag)
    student, other = ARM(knowing(4), config, trained=True), ARM(small(), config)
    for number in range(7):
        assert student.observe(*blobs(4, number))["recalled_loss"] >= 0  # not nan
    save(student, tmp_path / "learner")
    load(other, tmp_path / "learner")
    assert other.observe(*blobs(4, 7))["recalled_loss"] >= 0  # not nan


# Said once


def said(student: Learner, *batches: tuple[Tensor, Tensor]) -> list[str]:
    """The warnings while these are learned."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for x, y in batches:
            student.observe(x, y)
    return [str(each.message) for each in found]


@pytest.mark.parametrize("scale", [255.0, -20.0])
def test_inputs_that_were_not_scaled_are_noticed_once(scale: float) -> None:
    sentences = said(Naive(small()), *((x * scale, y) for x, y in (blobs(0, 0), blobs(0, 1))))
    assert len(sentences) == 1
    assert "expect about [0, 1]: divide bytes by 255" in sentences[0]


def test_standardised_inputs_are_fine() -> None:
    assert said(Naive(small()), *((x * 6 - 3, y) for x, y in (blobs(0, 0), blobs(0, 1)))) == []


@pytest.mark.parametrize("mode", [True, False])
def test_batch_norm_that_moves_in_a_frozen_part_is_noticed_once(mode: bool) -> None:
    network = conv().train(mode)
    for part in list(network.children())[:-1]:
        part.requires_grad_(False)
    (sentence,) = said(Naive(network), batch(0), batch(1))
    assert sentence.startswith("batch-norm layer 1 is frozen but in train mode")


def test_batch_norm_that_stands_still_is_fine() -> None:
    network = conv().train()
    for part in list(network.children())[:-1]:
        part.requires_grad_(False).eval()
    assert said(Naive(network), batch(0), batch(1)) == []


@pytest.mark.parametrize("method", TAUGHT)
def test_boundaries_that_nobody_announces_are_noticed_once(method: str) -> None:
    student = learner(method, mlp(), lag=LagConfig("boundary"))
    batches = [batch(number, 20) for number in (0, 1, 2, 3, 4, 5)]
    sentences = said(student, *batches)
    assert len(sentences) == 1
    assert "boundary() was not called" in sentences[0]
    told = learner(method, mlp(), lag=LagConfig("boundary"))
    for number, each in enumerate(batches):
        if number % 2 == 0:
            told.boundary()
        assert said(told, each) == []


def test_bytes_are_refused_by_predict() -> None:
    with pytest.raises(InputError, match=r"x has dtype torch\.uint8; .* use x\.float\(\) / 255"):
        Naive(small()).predict(torch.zeros(1, 1, 6, 6, dtype=torch.uint8))


@pytest.mark.parametrize("name", ["mnist/arm", "mnist/adi", "mnist/lwf", "mnist/er-50", "mnist/er-mir-50"])
def test_the_settings_of_a_preset_will_do_in_a_loop_of_ones_own(name: str) -> None:
    """Tasks then begin with new classes."""
    preset = PRESETS[name].config
    student = preset.learner.build(preset.network.build((1, 28, 28), 10), 0)
    assert student.boundaries is not None
    for number in range(12):
        x = torch.rand(10, 1, 28, 28, generator=torch.Generator().manual_seed(number))
        student.observe(x, torch.full((10,), number // 6))
    assert student.boundaries.tasks == 2
