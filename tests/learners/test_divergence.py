"""After a batch every number of a learner's state is finite, or one sentence says which one is not."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from autorecall import ERMIR, GEN, SLDA, ConvVAEConfig, ERMIRConfig, GENConfig, Learner, Naive, SLDAConfig
from autorecall.errors import AutorecallError, ConfigError, DivergedError, InputError
from autorecall.learners.base import methods
from autorecall.learners.gem import project
from autorecall.learners.shared.finite import all_finite

from .worlds import (
    ALL,
    CLASSES,
    OFTEN,
    any_method,
    assert_same,
    batch,
    conv,
    every_method,
    learner,
    mlp,
    normed,
    observe,
    spoilt,
    teacher_of,
)

pytestmark = pytest.mark.filterwarnings("ignore:x has values")  # far too large, which is noticed


def single(number: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    x, y = batch(number)
    return scale * x.float(), y


class Fragile(nn.Module):
    """Its features are infinite for large inputs, and NaN for larger ones."""

    treats_images_alone = True

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(60, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        features = self.first(x.flatten(1)).exp()
        logits: Tensor = self.last(features - features.flip(1))
        return logits


def said(student: Learner, x: Tensor, y: Tensor) -> AutorecallError | None:
    """What a learner says to a batch it does not learn."""
    return said_of(lambda: student.observe(x, y))


def said_of(work: Callable[[], object]) -> AutorecallError | None:
    """One sentence, or nothing."""
    try:
        work()
    except AutorecallError as error:
        sentence = str(error)
        assert sentence.isprintable()
        assert len(sentence) < 1000
        return error
    return None


@pytest.mark.parametrize("observed", [0, 3])
@pytest.mark.parametrize("make", [normed, lambda: conv().float(), Fragile])
@any_method
def test_a_batch_that_cannot_be_learned_leaves_no_trace(
    method: str, make: Callable[[], nn.Module], observed: int
) -> None:
    bad, usual = learner(method, make()), learner(method, make())
    for number in range(observed):
        bad.observe(*single(number))
        usual.observe(*single(number))
    before = copy.deepcopy(bad.state_dict())
    if isinstance(said(bad, *single(3, 1e30)), AutorecallError):
        assert_same(bad.state_dict(), before)
        for number in range(3, 7):
            assert_same(bad.observe(*single(number)), usual.observe(*single(number)))
        assert_same(bad.state_dict(), usual.state_dict())
    assert spoilt(bad) == []


@any_method
def test_running_statistics_that_overflow_are_named(method: str) -> None:
    student = learner(method, normed())
    if method in ("slda", "gaussians"):
        pytest.skip("it leaves them as they are")
    if method.startswith("gen"):
        pytest.skip("its generator takes no such inputs")
    with pytest.raises(DivergedError, match="the running variance of batch-norm layer 1 became inf; lower") as caught:
        student.observe(*single(0, 1e30))
    assert not caught.value.spoiled


def test_running_statistics_of_the_teacher_are_looked_at() -> None:
    student = learner("lwf", normed())
    for number in range(3):
        student.observe(*single(number))
    variance = teacher_of(student)["1.running_var"]
    assert isinstance(variance, Tensor)
    variance.fill_(math.inf)
    with pytest.raises(DivergedError, match=r"^the teacher: the running variance of batch-norm layer 1") as caught:
        student.observe(*single(3))
    assert caught.value.spoiled


def test_a_constant_that_is_infinite_is_the_users_own_affair() -> None:
    network = normed()
    network.register_buffer("mask", torch.tensor([0.0, -math.inf]))
    for method in ALL:
        student = learner(method, copy.deepcopy(network))
        for number in range(4):
            student.observe(*single(number))


class Replacing(nn.Module):
    """It keeps a running mean by replacing the buffer, not by changing it."""

    treats_images_alone = True

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("mean", torch.zeros(60))
        self.last = nn.Linear(60, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.get_buffer("mean") + 0.1 * (x.flatten(1).detach() * 1e10).mean(0)
        logits: Tensor = self.last(x.flatten(1))
        return logits


def test_a_buffer_may_be_replaced() -> None:
    student = Naive(Replacing())
    student.observe(*single(0))
    before = copy.deepcopy(student.state_dict())
    with pytest.raises(DivergedError, match=r"^the buffer mean became inf"):
        student.observe(*single(1, 1e30))
    assert_same(student.state_dict(), before)


@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
def test_a_network_may_be_lazy() -> None:
    student = Naive(nn.Sequential(nn.Flatten(), nn.LazyBatchNorm1d(), nn.LazyLinear(CLASSES)))
    observe_single(student)
    assert spoilt(student) == []


@every_method
def test_a_weight_that_overflows_is_named(method: str) -> None:
    network = mlp().float()
    student = learner(method, network)
    student.observe(*single(0))
    with torch.no_grad():
        network.get_parameter("1.weight")[0, 0] = math.inf
        network.get_parameter("1.bias")[0] = -math.inf
    x, y = single(1)
    x[:, 0, 0, 0] = 0.5
    with pytest.raises(DivergedError) as caught:
        student.observe(x, y)
    assert "\n" not in str(caught.value)


@every_method
def test_a_step_that_spoils_the_network_says_so(method: str) -> None:
    network = mlp().float()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e38, weight_decay=1e38)
    with pytest.raises(
        DivergedError, match="this step spoiled the network: go on from what was saved before"
    ) as caught:
        learner(method, network, optimizer).observe(*single(0))
    assert caught.value.spoiled
    assert len(str(caught.value)) < 300


def test_the_weight_is_named() -> None:
    network = mlp().float()
    student = Naive(network, optimizer=torch.optim.SGD(network.parameters(), lr=1e38, weight_decay=1e38))
    with pytest.raises(DivergedError, match=r"^the parameter 1\.weight became -?(inf|nan)"):
        student.observe(*single(0))


@every_method
def test_moments_that_overflow_are_named(method: str) -> None:
    """Adam divides by them: the weights stay finite, and never move again."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(60, 8), nn.Linear(8, CLASSES))
    with torch.no_grad():
        network.get_parameter("2.weight").mul_(1e24)
    student = learner(method, network, torch.optim.Adam(network.parameters(), lr=1e-3))
    with pytest.raises(DivergedError, match=r"exp_avg_sq of the optimizer for 1\.weight became inf|became (inf|nan)"):
        observe_single(student)


def observe_single(student: Learner) -> None:
    for number in range(4):
        student.observe(*single(number))


def test_moments_are_named() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(60, 8), nn.Linear(8, CLASSES))
    with torch.no_grad():
        network.get_parameter("2.weight").mul_(1e24)
    student = Naive(network, optimizer=torch.optim.Adam(network.parameters(), lr=1e-3))
    with pytest.raises(DivergedError, match=r"^exp_avg_sq of the optimizer for 1\.weight became inf"):
        student.observe(*single(0))


def test_a_rate_that_the_dtype_cannot_hold_is_no_traceback() -> None:
    network = mlp().float()
    student = Naive(network, optimizer=torch.optim.SGD(network.parameters(), lr=1e39))
    with pytest.raises(DivergedError, match="the optimizer's step became inf"):
        student.observe(*single(0))


def test_parameters_may_be_replaced_between_batches() -> None:
    network = mlp().float()
    student = Naive(network)
    student.observe(*single(0))
    weight = nn.Parameter(torch.zeros_like(network.get_parameter("1.weight")))
    vars(network.get_submodule("1"))["_parameters"]["weight"] = weight
    student.optimizer.add_param_group({"params": [weight]})
    student.observe(*single(1))
    student.optimizer.param_groups[1].update(lr=1e38, weight_decay=1e38)
    with pytest.raises(DivergedError, match=r"^the (parameter 1\.weight|loss)"):
        observe_single(student)


# SLDA


def test_features_that_are_no_numbers_are_not_taken_in() -> None:
    student = SLDA(Fragile())
    student.observe(*single(0))
    with pytest.raises(DivergedError, match=r"^a feature became (nan|-?inf)"):
        student.observe(*single(1, 1e30))
    assert bool(student.predict(single(9)[0]).isfinite().all())


@pytest.mark.parametrize("scale", [1e19, 1e25, 1e30, 1e37])
@pytest.mark.parametrize("shrinkage", [1e-308, 1e-30, 0.01, 1.0])
def test_statistics_that_overflow_are_not_taken_in(scale: float, shrinkage: float) -> None:
    student = SLDA(mlp().float(), SLDAConfig(shrinkage))
    for number in range(4):
        error = said(student, *single(number, scale if number % 2 else 1.0))
        assert error is None or isinstance(error, DivergedError)
        assert spoilt(student) == []
        assert bool(student.predict(single(9)[0]).isfinite().all())


def test_features_that_never_vary_are_solved_or_named() -> None:
    student = SLDA(nn.Sequential(nn.Flatten(), nn.Linear(60, CLASSES)), SLDAConfig(1e-20))
    error = said(student, torch.ones(4, 60), torch.tensor([0, 0, 1, 1]))
    assert error is None or isinstance(error, DivergedError)
    assert spoilt(student) == []


# Generators, kept images


def test_the_steps_of_a_generator_are_taken_back() -> None:
    """Its steps come first, and the classifier then finds what is wrong."""
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, CLASSES)
    network = nn.Sequential(*layers)
    config = GENConfig(steps_per_batch=2, vae=ConvVAEConfig(latents=3, reconstruction="mean"), groups=1)
    student = GEN(network, config)
    torch.manual_seed(0)
    x, y = torch.rand(6, 1, 8, 8), torch.arange(6)
    student.observe(x, y)
    before = copy.deepcopy(student.state_dict())
    with torch.no_grad():
        network.get_parameter("0.weight").mul_(1e30)
    before["network"] = copy.deepcopy(student.state_dict()["network"])
    with pytest.raises(DivergedError, match="the running variance of batch-norm layer 1 became inf"):
        student.observe(x, y)
    assert_same(student.state_dict(), before)


@pytest.mark.parametrize("method", ["gen", "gen-mir"])
def test_a_generator_that_makes_no_numbers_is_no_traceback(method: str) -> None:
    """Found by the fuzz test in half precision, where Adam's ε is 0."""
    student = learner(method, mlp().float())
    assert isinstance(student, GEN)
    student.observe(*single(0))
    assert student.vae is not None
    with torch.no_grad():
        next(student.vae.parameters()).fill_(math.nan)
    with pytest.raises(DivergedError, match="a pixel of the generator became nan"):
        student.observe(*single(1))


def test_outputs_are_remembered_only_if_they_are_finite() -> None:
    network = mlp().float()
    student = ERMIR(network, ERMIRConfig(8, replayed=2, candidates=4, remember_outputs=True, tasks=OFTEN))
    for number in range(3):
        student.observe(*single(number))
    before = copy.deepcopy(student.state_dict())
    x, y = single(3)
    with torch.no_grad():
        network.get_parameter("5.bias").copy_(torch.tensor([3e38, 3e38, 0, 0, 0, 0]))
        network.get_parameter("5.weight").mul_(0)
    before["network"] = copy.deepcopy(student.state_dict()["network"])
    with pytest.raises(DivergedError):
        student.observe(x, torch.full_like(y, 5))
    assert_same(student.state_dict(), before)


@pytest.mark.parametrize("scale", [1e150, 1e160, 1e300])
def test_gradients_that_overflow_are_named_before_they_are_projected(scale: float) -> None:
    """Found by the fuzz test: numbers that are finite, with products that are not."""
    gradient = scale * torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    for memories in (-gradient[None], torch.stack([-gradient, torch.ones_like(gradient)])):
        for margin in (0.0, 0.5, 1e308):
            error = said_of(partial(project, gradient, memories, margin))
            assert error is None or isinstance(error, DivergedError)


# Any setting


def settings() -> list[tuple[str, str]]:
    return [
        (method, field.name)
        for method in ALL
        for field in dataclasses.fields(methods()[method])
        if isinstance(getattr(methods()[method](), field.name), float)
    ]


@pytest.mark.parametrize(("method", "name"), settings())
def test_any_number_as_a_setting_is_learned_with_or_refused(method: str, name: str) -> None:
    for double, value, network in ((False, 1e38, conv()), (True, 1e308, mlp()), (True, 5e-324, conv())):
        usual = learner(method, network if double else network.float())
        try:
            config = dataclasses.replace(usual.config, **{name: value})  # type: ignore[attr-defined]
        except ConfigError:
            continue
        student, errors = config.build(usual.network, 0), list[AutorecallError | None]()
        for number in range(4):
            x, y = batch(number)
            errors += [said(student, x if double else x.float(), y)]
            assert isinstance(errors[-1], ConfigError | DivergedError | None)
        assert any(errors) or spoilt(student) == []


def test_a_setting_that_the_network_cannot_hold_is_named() -> None:
    student = GEN(mlp().float(), GENConfig(replay_weight=1e308))
    with pytest.raises(ConfigError, match=r"learner\.replay_weight is 1e\+308, which is more than"):
        student.observe(*single(0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_sums_find_all_that_is_not_finite_and_nothing_else(dtype: torch.dtype) -> None:
    large = torch.finfo(dtype).max
    for values in ([large, large], [large, -large], [-large, -large, -large], [0.0], []):
        assert all_finite([torch.tensor(values, dtype=dtype), torch.ones(2, dtype=dtype)])
    for odd in (math.nan, math.inf, -math.inf):
        for values in ([odd], [odd, large], [odd, -odd], [-large, odd, 0.0]):
            assert not all_finite([torch.ones(2, dtype=dtype), torch.tensor(values, dtype=dtype)])


def test_what_has_no_values_to_look_at_is_left_out() -> None:
    odd = torch.zeros(2, device="meta"), torch.zeros(2).to(torch.float8_e5m2), torch.eye(2).to_sparse(), torch.arange(3)
    assert all_finite(odd)


def test_an_observed_state_is_finite() -> None:
    for method in ALL:
        student = learner(method, conv())
        observe(student)
        assert spoilt(student) == []


@every_method
def test_a_state_with_a_mask_of_the_users_is_taken_back_and_one_with_a_weight_that_is_none_is_not(method: str) -> None:
    network = normed()
    network.register_buffer("mask", torch.tensor([0.0, -math.inf]))
    student, other = (learner(method, copy.deepcopy(network)) for _ in range(2))
    for number in range(4):
        student.observe(*single(number))
    state = student.state_dict()
    other.load_state_dict(state)
    weights = state["network"]
    assert isinstance(weights, dict)
    name = next(name for name, value in weights.items() if value.is_floating_point() and name != "mask")
    weights[name] = torch.full_like(weights[name], math.nan)
    with pytest.raises(InputError, match=rf"a number in network\.{name} that is not finite"):
        other.load_state_dict(state)
