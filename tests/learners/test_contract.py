"""What every learner promises: things left as found, states that go on bit for bit, any input and any network."""

from __future__ import annotations

import copy
import pickle
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from autorecall import LagConfig, Learner, Naive
from autorecall.errors import InputError

from .worlds import (
    CLASSES,
    IMAGE,
    KEEPING,
    METHODS,
    OFTEN,
    Make,
    alive,
    any_method,
    assert_same,
    batch,
    conv,
    every_method,
    every_network,
    learner,
    mlp,
    observe,
)


def layer(network: nn.Module, number: int) -> nn.Module:
    assert isinstance(network, nn.Sequential)
    found: nn.Module = network[number]
    return found


# Left as found


@pytest.mark.parametrize("root", [True, False])
@pytest.mark.parametrize("frozen", [(), (1,), (1, 4, 5)])
@any_method
def test_modes_are_left_as_found(method: str, frozen: tuple[int, ...], root: bool) -> None:
    network = conv().train(root)
    for number in frozen:
        layer(network, number).train(not root)
    found = [module.training for module in network.modules()]
    student = learner(method, network)
    observe(student)
    assert [module.training for module in network.modules()] == found
    student.predict(batch(0)[0])
    assert [module.training for module in network.modules()] == found


@every_method
def test_submodule_frozen_in_eval_keeps_its_running_statistics(method: str) -> None:
    network = conv()
    layer(network, 1).eval()
    before = copy.deepcopy(layer(network, 1).state_dict())
    moving = copy.deepcopy(layer(network, 4).state_dict()["running_mean"])
    observe(learner(method, network))
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(layer(network, 1).state_dict()[name], before[name])
    assert not torch.equal(layer(network, 4).state_dict()["running_mean"], moving)


@any_method
def test_network_in_eval_learns_as_one_in_train_mode(method: str) -> None:
    training, evaluating = conv(), conv().eval()
    observe(learner(method, training))
    observe(learner(method, evaluating))
    assert_same(evaluating.state_dict(), training.state_dict())


@every_method
def test_frozen_layer_stays_frozen_and_unchanged(method: str) -> None:
    network = mlp()
    layer(network, 1).requires_grad_(False)
    flags = [p.requires_grad for p in network.parameters()]
    before = copy.deepcopy(network.state_dict())
    observe(learner(method, network))
    assert [p.requires_grad for p in network.parameters()] == flags
    changed = {name for name, value in network.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"3.weight", "3.bias", "5.weight", "5.bias"}


@every_network
@any_method
def test_no_gradient_is_left_behind(method: str, make: Make) -> None:
    network = make()
    observe(learner(method, network))
    assert all(p.grad is None for p in network.parameters())


@every_method
def test_no_gradient_is_left_behind_where_the_optimizer_trains_the_last_layer_alone(method: str) -> None:
    network = mlp()
    optimizer = torch.optim.SGD(layer(network, 5).parameters(), lr=0.1)
    before = copy.deepcopy(network.state_dict())
    observe(learner(method, network, optimizer))
    changed = {name for name, value in network.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"5.weight", "5.bias"}
    assert all(p.grad is None for p in network.parameters())


@any_method
def test_hooks_are_left_as_found(method: str) -> None:
    network = conv()
    calls: list[int] = []
    handle = network.register_forward_hook(lambda *_: calls.append(1))
    observe(learner(method, network))
    hooks = [
        (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks), len(m._backward_pre_hooks))
        for m in network.modules()
    ]
    assert hooks[0] == (1, 0, 0, 0)
    assert set(hooks[1:]) == {(0, 0, 0, 0)}
    assert calls
    handle.remove()
    assert not any("forward" in vars(module) for module in network.modules())


@pytest.mark.parametrize(
    ("method", "descents"),
    [("naive", 4), ("lwf", 6), ("adi", 6), ("arm", 6), ("er", 8), ("er-mir", 8), ("gem", 4), ("icarl", 8), ("gen", 8)],
)
def test_users_optimizer_is_stepped_once_per_descent_and_otherwise_left_alone(method: str, descents: int) -> None:
    """Four batches, recall from the third on: one descent each, two where there is a second step."""
    network = conv()
    parameters = list(network.parameters())
    optimizer = torch.optim.Adam(
        [{"params": parameters[:3], "lr": 1e-3}, {"params": parameters[3:], "lr": 2e-3, "weight_decay": 0.1}]
    )
    groups = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    observe(learner(method, network, optimizer))
    kept = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    assert kept == groups
    assert [id(p) for group in optimizer.param_groups for p in group["params"]] == [id(p) for p in parameters]
    assert set(optimizer.state) == set(parameters)
    assert {int(state["step"]) for state in optimizer.state.values()} == {descents}


@every_network
@any_method
def test_predict_changes_nothing(method: str, make: Make) -> None:
    network = make()
    student = learner(method, network)
    observe(student)
    before, random = copy.deepcopy(student.state_dict()), torch.get_rng_state()
    modes = [module.training for module in network.modules()]
    logits = student.predict(batch(9)[0])
    assert_same(student.state_dict(), before)
    assert torch.equal(torch.get_rng_state(), random)
    assert [module.training for module in network.modules()] == modes
    assert all(p.grad is None for p in network.parameters())
    assert not logits.requires_grad


def test_predict_uses_running_statistics_so_that_an_image_is_judged_by_itself() -> None:
    student = Naive(conv())
    observe(student)
    x, _ = batch(9)
    torch.testing.assert_close(student.predict(x)[:1], student.predict(x[:1]))
    torch.testing.assert_close(student.predict(x), copy.deepcopy(student.network).eval()(x).detach())


@every_network
@any_method
def test_global_random_state_is_untouched(method: str, make: Make) -> None:
    student = learner(method, make())
    random = torch.get_rng_state()
    observe(student)
    assert torch.equal(torch.get_rng_state(), random)


@every_network
@any_method
def test_batches_are_not_modified(method: str, make: Make) -> None:
    student = learner(method, make())
    for number in range(4):
        x, y = batch(number)
        x.requires_grad_()
        student.observe(x, y)
        assert torch.equal(x, batch(number)[0])
        assert torch.equal(y, batch(number)[1])
        assert x.grad is None


@pytest.mark.parametrize("method", sorted({*METHODS} - {*KEEPING}))
def test_no_image_outlives_observe(method: str) -> None:
    """Neither the user's own memory, which the array stands for, nor a tensor in the shape of an image."""
    student = learner(method, conv())
    before = alive(IMAGE)
    kept = []
    for number in range(4):
        array: np.ndarray = batch(number)[0].numpy().copy()
        kept.append(weakref.ref(array))
        x = torch.from_numpy(array)
        del array
        student.observe(x, batch(number)[1])
        del x
    assert [reference() for reference in kept] == [None] * 4
    assert alive(IMAGE) == before


# States


def plain_values(state: object) -> bool:
    if type(state) is dict:
        return all(type(key) is str and plain_values(value) for key, value in state.items())
    if type(state) is list:
        return all(plain_values(value) for value in state)
    return type(state) in {Tensor, int, float, str, bool, type(None)}


def sgd(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)


def adam(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(network.parameters(), lr=0.01, betas=(0.8, 0.99))


every_optimizer = pytest.mark.parametrize("optimize", [None, sgd, adam])
Optimize = Callable[[nn.Module], torch.optim.Optimizer] | None


def made(method: str, network: nn.Module, optimize: Optimize, seed: int, lag: LagConfig = OFTEN) -> Learner:
    return learner(method, network, optimize and optimize(network), seed, lag)


@pytest.mark.parametrize(("observed", "optimize"), [(0, None), (3, None), (1, sgd), (3, adam)])
@pytest.mark.parametrize("make", [mlp, conv])
@any_method
def test_saved_state_goes_on_bit_for_bit(
    method: str, make: Callable[[int], nn.Module], optimize: Optimize, observed: int
) -> None:
    first = made(method, make(1), optimize, seed=1)
    observe(first, observed)
    state = copy.deepcopy(first.state_dict())
    second = made(method, make(2), optimize, seed=2)
    observe(second, 2)
    second.load_state_dict(state)
    for number in range(observed, observed + 4):
        assert_same(second.observe(*batch(number)), first.observe(*batch(number)))
    assert_same(second.state_dict(), first.state_dict())


@any_method
def test_a_pickled_learner_goes_on_bit_for_bit(method: str) -> None:
    one = learner(method, conv())
    one.threads = 2  # with a thread at work, where a method has one
    observe(one)
    other = pickle.loads(pickle.dumps(one))
    assert_same(other.observe(*batch(4)), one.observe(*batch(4)))
    assert_same(other.state_dict(), one.state_dict())


@pytest.mark.parametrize("lag", [LagConfig("novel", spacing=18), LagConfig("boundary")])
@pytest.mark.parametrize("method", METHODS[1:])
def test_saved_state_remembers_classes_copies_and_a_boundary_ahead(method: str, lag: LagConfig) -> None:
    first = made(method, mlp(1), None, 1, lag)
    observe(first, 3)
    first.boundary()
    second = made(method, mlp(2), None, 2, lag)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for number in range(3, 9):
        assert_same(second.observe(*batch(number)), first.observe(*batch(number)))
    assert_same(second.state_dict(), first.state_dict())


@every_optimizer
@any_method
def test_state_is_made_of_plain_values_and_tensors(method: str, optimize: Optimize) -> None:
    student = made(method, conv(), optimize, seed=0)
    assert plain_values(student.state_dict())
    observe(student)
    assert plain_values(student.state_dict())


@pytest.mark.parametrize("optimize", [None, sgd, adam])
@any_method
def test_saved_state_is_not_changed_by_the_learner_that_took_it(method: str, optimize: Optimize) -> None:
    first = made(method, mlp(1), optimize, seed=1)
    observe(first)
    state = copy.deepcopy(first.state_dict())
    kept = copy.deepcopy(state)
    second = made(method, mlp(2), optimize, seed=2)
    second.load_state_dict(state)
    observe(second)
    assert_same(state, kept)


@any_method
def test_saved_state_goes_on_in_a_network_that_is_in_eval_mode(method: str) -> None:
    """Whoever loads a checkpoint to look at it may well have called eval() before."""
    first = made(method, conv(1), None, seed=1)
    observe(first, 3)
    second = made(method, conv(2).eval(), None, seed=2)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for number in range(3, 6):
        assert_same(second.observe(*batch(number)), first.observe(*batch(number)))


@pytest.mark.parametrize("name", ["network", "optimizer", "generator", "classes", "teacher"])
def test_damaged_state_is_refused(name: str) -> None:
    student = learner("arm", mlp())
    with pytest.raises(InputError, match="it is damaged"):
        student.load_state_dict(student.state_dict() | {name: "nonsense"})


@any_method
def test_a_saved_state_stays_as_it_was_when_the_learner_goes_on(method: str) -> None:
    """But for the networks and optimizers, whose tensors are theirs, as with torch's own state_dict."""
    student = learner(method, mlp())
    observe(student, 3)
    shared = ("network", "optimizer", "teacher", "vae", "vae_optimizer")
    state = {name: value for name, value in student.state_dict().items() if name not in shared}
    kept = copy.deepcopy(state)
    for number in range(3, 6):
        student.observe(*batch(number))
    assert_same(state, kept)


# Any input, any network


class Recurrent(nn.Module):
    """Reads a sequence, and answers from its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.GRU(3, 8, batch_first=True)
        self.answer = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.read(x)
        logits: Tensor = self.answer(states[:, -1])
        return logits


@pytest.mark.filterwarnings("ignore:recall keeps all:UserWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (Recurrent, (7, 3)),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(21, CLASSES)), (7, 3)),
        (lambda: nn.Linear(5, CLASSES), (5,)),
        (lambda: nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES)), (5,)),
        (lambda: nn.Sequential(nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3), nn.Flatten(), nn.Linear(12, CLASSES)), (2, 5)),
        (
            lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.BatchNorm3d(2), nn.Flatten(), nn.Linear(16, CLASSES)),
            (1, 3, 3, 3),
        ),
    ],
)
@every_method
def test_inputs_may_have_any_shape(method: str, make: Make, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    student = learner(method, make().to(dtype))
    for number in range(4):
        x, y = batch(number, shape=shape)
        numbers = student.observe(x.to(dtype), y)
        assert np.isfinite(numbers["loss"])
    logits = student.predict(x.to(dtype))
    assert logits.shape == (6, CLASSES)
    assert logits.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_labels_may_be_any_integers(dtype: torch.dtype) -> None:
    given, usual = learner("arm", mlp()), learner("arm", mlp())
    for number in range(4):
        x, y = batch(number)
        assert_same(given.observe(x, y.to(dtype)), usual.observe(x, y))


@every_method
def test_numbers_have_the_same_names_at_every_step(method: str) -> None:
    student = learner(method, mlp())
    names = [list(student.observe(*batch(number))) for number in range(4)]
    assert all(each == names[0] for each in names)
    assert names[0][0] == "loss"


@every_method
def test_learners_learn(method: str) -> None:
    """Two classes told apart by one pixel."""
    dreams = method.startswith("gen")  # of little use to a generator of three latents that has seen two batches
    student = learner(method, mlp(), learning_rate=0.2, lag=LagConfig("every", every=300) if dreams else OFTEN)
    x, _ = batch(0, count=40)
    y = (x[:, 0, 0, 0] > 0.5).long()
    x[:, 0, 0] = (x[:, 0, 0, :1] > 0.5).double()
    losses = [student.observe(x, y)["loss"] for _ in range(200)]
    assert losses[-1] < 0.2 * losses[0]
    assert float((student.predict(x).argmax(1) == y).double().mean()) > 0.9
