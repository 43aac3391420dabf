"""A plan gives what autograd gives, leaves the same traces, and is used only where it is known to."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autorecall.networks import MLPConfig, ResNet18Config
from autorecall.recall.batch import Recalled
from autorecall.recall.copies import forward
from autorecall.recall.kernels import can_call
from autorecall.recall.plan import Plan, Plans
from autorecall.recall.statistics import statistics_of

pytestmark = pytest.mark.skipif(not can_call(torch.zeros(1)), reason="installed without compiled kernels")

IMAGE = (2, 12, 8)
COUNTS = torch.tensor([3, 1, 4, 1, 5])
Make = Callable[[], nn.Module]


class Residual(nn.Module):
    """Shortcuts of every kind: around one block, around two, and one that is only added."""

    same_steps = True

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6, affine=False)
        self.second, self.third = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(6, momentum=None), nn.BatchNorm2d(6, track_running_stats=False)])
        self.last = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)))
        y = torch.relu(x + self.norms[0](self.second(x)))
        z = self.norms[1](self.third(y)) + x
        return self.last(F.adaptive_avg_pool2d(z, 1).flatten(1))  # type: ignore[no-any-return]


class Pair(nn.Module):
    """Two batch-norm layers added up, with an average pool and no shortcut."""

    same_steps = True

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(2, 5, 3, stride=2), nn.Conv2d(2, 5, 3, stride=2, bias=False)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(5), nn.BatchNorm2d(5)])
        self.last = nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        both = [norm(conv(x)) for norm, conv in zip(self.norms, self.convs, strict=True)]
        return self.last(torch.flatten(F.avg_pool2d(F.relu(torch.add(*both)), 2), 1))  # type: ignore[no-any-return]


class Shared(nn.Module):
    """One layer that is used twice."""

    same_steps = True

    def __init__(self) -> None:
        super().__init__()
        self.flat, self.norm, self.again = nn.Flatten(), nn.BatchNorm1d(192), nn.Linear(192, 192)
        self.last = nn.Linear(192, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.again(self.flat(x))))
        return self.last(F.relu(self.again(x)))  # type: ignore[no-any-return]


class Written(nn.Module):
    """A network whose forward is given as a function of its layers."""

    same_steps = True

    def __init__(self, forward: Callable[[Written, Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.again, self.same = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(2, 4, 3, padding=1), nn.Identity()
        self.norm, self.other, self.pool = nn.BatchNorm2d(4), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1)
        self.last, self.written = nn.Linear(4, 4), forward

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.pool(self.written(self, x)).flatten(1))  # type: ignore[no-any-return]


def relu_behind_identity(of: Written, x: Tensor) -> Tensor:
    h = of.conv(x)
    return F.relu(of.norm(h) + F.relu(of.same(h)))


def norms_of_one(of: Written, x: Tensor) -> Tensor:
    h = of.conv(x)
    return F.relu(of.norm(of.same(h)) + of.other(h))


def behind_identity(of: Written, x: Tensor) -> Tensor:
    return F.relu(of.norm(of.same(of.conv(of.same(x)))))


def layers(*of: nn.Module) -> Make:
    return lambda: nn.Sequential(*copy.deepcopy(of))


NETWORKS: dict[str, Make] = {
    "mlp": lambda: MLPConfig((9, 8)).build(IMAGE, 4),
    "resnet18": lambda: ResNet18Config(channels=8).build((2, 32, 32), 4),
    "small resnet18": lambda: ResNet18Config(channels=9, stem_momentum=0.3).build(IMAGE, 4),
    "shortcuts": Residual,
    "a pair": Pair,
    "shared": Shared,
    "identity": lambda: Written(behind_identity),
    "two norms of one convolution": lambda: Written(norms_of_one),
    "linear": layers(nn.Flatten(), nn.Linear(192, 4)),
    "norm first": layers(nn.BatchNorm2d(2), nn.Flatten(), nn.BatchNorm1d(192), nn.ReLU(), nn.Linear(192, 4)),
    "norm last": layers(nn.Flatten(), nn.Linear(192, 4), nn.Identity(), nn.BatchNorm1d(4)),
    "relu last": layers(
        *(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4), nn.ReLU())
    ),
    "pools": layers(
        *(nn.Conv2d(2, 4, 3, padding=(1, 0), dilation=(1, 2)), nn.MaxPool2d(3, 2, 1), nn.BatchNorm2d(4), nn.ReLU()),
        *(nn.Conv2d(4, 6, 1, groups=2), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(6 * 3, 4)),
    ),
}  # fmt: skip
every_network = pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS.keys())


def made(make: Make) -> tuple[nn.Module, Tensor]:
    """A network whose batch-norm layers have seen something, and images for it."""
    torch.manual_seed(0)
    network = make().double()
    size = (2, 32, 32) if make is NETWORKS["resnet18"] else IMAGE
    with torch.no_grad():
        for number, p in enumerate(network.parameters()):
            if p.dim() == 1:
                p.add_(0.3 * torch.randn_like(p) + 0.01 * number)
        network(torch.rand(6, *size, dtype=torch.float64))
    return network, torch.rand(5, *size, dtype=torch.float64)


def passes(network: nn.Module, x: Tensor, counts: Tensor, statistics: bool = False) -> tuple[Tensor, ...]:
    """Outputs, gradient of the images and buffers after three passes by autograd."""
    x = x.clone().requires_grad_()
    found: tuple[Tensor, ...] = ()
    for number in range(3):
        with statistics_of(network, Recalled(x, counts, None)) as distances:
            outputs: tuple[Tensor, ...] = (forward(network, x, counts if len(counts) != int(counts.sum()) else None),)
        if statistics and distances:
            outputs = (*outputs, torch.stack(distances).mean())
        found = (*outputs, torch.autograd.grad(outputs, x, slopes(outputs, number))[0])
    return (*found, *network.buffers())


def planned_passes(network: nn.Module, x: Tensor, counts: Tensor, statistics: bool = False) -> tuple[Tensor, ...]:
    """The same by a plan."""
    before, plan = x.clone(), Plans().of(network, x)
    found: tuple[Tensor, ...] = ()
    assert plan is not None
    total = int(counts.sum())
    for number in range(3):
        outputs, run = plan.forward(x, counts.to(x) / total, total, statistics)
        kept = tuple(output.clone() for output in outputs)
        found = (*kept, plan.backward(run, *slopes(outputs, number)))
    assert torch.equal(x, before)
    return (*found, *network.buffers())


def slopes(outputs: tuple[Tensor, ...], number: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(number)
    return [torch.randn(output.shape, generator=generator, dtype=output.dtype) for output in outputs]


def assert_close(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], tolerance: float = 1e-12) -> None:
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs.detach(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("counts", [COUNTS, torch.ones_like(COUNTS)], ids=["counted", "once"])
@every_network
def test_a_plan_gives_what_autograd_gives(make: Make, counts: Tensor, layout: torch.memory_format) -> None:
    network, x = made(make)
    x = x.contiguous(memory_format=layout)
    assert_close(planned_passes(copy.deepcopy(network), x, counts), passes(network, x, counts))


@pytest.mark.parametrize("name", ["shortcuts", "a pair", "resnet18", "norm first", "shared"])
def test_statistics_have_the_gradient_that_autograd_gives(name: str) -> None:
    network, x = made(NETWORKS[name])
    expected = passes(copy.deepcopy(network), x, COUNTS, statistics=True)
    assert_close(planned_passes(network, x, COUNTS, statistics=True), expected)


def test_single_precision() -> None:
    network, x = made(NETWORKS["resnet18"])
    network, x = network.float(), x.float()
    logits, gradient, *buffers = passes(copy.deepcopy(network), x, COUNTS)
    planned_logits, planned_gradient, *planned_buffers = planned_passes(network, x, COUNTS)
    assert_close((planned_logits, *planned_buffers), (logits, *buffers), 1e-4)
    # A ReLU at its edge may go either way, whatever is rounded first.
    assert (planned_gradient - gradient).norm() < 0.03 * gradient.norm()


def test_a_plan_uses_the_weights_of_now() -> None:
    network, x = made(NETWORKS["resnet18"])
    plan = Plan.of(network, x.shape[1:])
    assert plan is not None
    shares = COUNTS.to(x) / COUNTS.sum()
    for _ in range(2):
        with torch.no_grad():
            for p in network.parameters():
                p.data = p + 0.1
        plan.renew()
        expected = forward(copy.deepcopy(network), x, COUNTS).detach()
        assert_close(plan.forward(x, shares, int(COUNTS.sum()))[0], (expected,))


def test_what_is_not_finite_stays_so() -> None:
    network, x = made(NETWORKS["resnet18"])
    x[0, 0, 0, 0] = torch.nan
    plan = Plan.of(network, x.shape[1:])
    assert plan is not None
    (logits,), _ = plan.forward(x, COUNTS.to(x) / COUNTS.sum(), int(COUNTS.sum()))
    assert logits.isnan().all()


# What is left to autograd


class Moody(nn.Module):
    """Its steps may differ from batch to batch, for all that anybody knows."""

    treats_images_alone = True

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)  # type: ignore[no-any-return]


class Branching(Moody):
    """It says that it does not, and does."""

    same_steps = True

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if x.mean() > 0 else self.inner(-x)  # type: ignore[no-any-return]


class Twice(nn.Module):
    """A ReLU whose input is used again."""

    same_steps = True

    def __init__(self) -> None:
        super().__init__()
        self.flat, self.last, self.norm = nn.Flatten(), nn.Linear(192, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.last(self.flat(x))
        return F.relu(y) + self.norm(y)  # type: ignore[no-any-return]


def norm_twice(of: Written, x: Tensor) -> Tensor:
    return of.norm(of.conv(x)) + of.norm(of.again(x))  # type: ignore[no-any-return]


def broadcast(of: Written, x: Tensor) -> Tensor:
    h = of.conv(x)
    return F.relu(of.norm(of.again(x)) + of.pool(h))


def spread(of: Written, x: Tensor) -> Tensor:
    return F.relu(of.norm(of.pool(of.conv(x))) + of.again(x))


def pooled_otherwise(of: Written, x: Tensor) -> Tensor:
    return F.avg_pool2d(of.conv(x), 3, stride=1, padding=1)


def by_name(of: Written, x: Tensor) -> Tensor:
    return of.conv(input=x)  # type: ignore[no-any-return]


def by_length(of: Written, x: Tensor) -> Tensor:
    return of.conv(x).view(len(x), 4, 12, 8)  # type: ignore[no-any-return]


def dropped(of: Written, x: Tensor) -> Tensor:
    return F.dropout(of.conv(x), 0.5, of.training)


def written(forward: Callable[[Written, Tensor], Tensor]) -> Make:
    return lambda: Written(forward)


@pytest.mark.parametrize(
    "make",
    [
        *map(
            written,
            (relu_behind_identity, norm_twice, broadcast, spread, pooled_otherwise, by_name, by_length, dropped),
        ),
        Moody,
        Branching,
        Twice,
        layers(nn.Flatten(), nn.Linear(192, 4), nn.Tanh()),
        layers(nn.Flatten(), nn.Dropout(0.5), nn.Linear(192, 4)),
        layers(nn.ReLU(), nn.Flatten(), nn.Linear(192, 4)),
        layers(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.ReLU(), nn.Linear(240, 4)),
        layers(nn.Conv2d(2, 4, 3, padding="same", padding_mode="circular"), nn.Flatten(), nn.Linear(384, 4)),
        layers(nn.AvgPool2d(2, 1), nn.Flatten(), nn.Linear(2 * 11 * 7, 4)),
        layers(nn.Flatten(2), nn.BatchNorm1d(2), nn.Flatten(), nn.Linear(192, 4)),
        layers(nn.Identity()),
    ],
)
def test_what_is_not_known_is_left_to_autograd(make: Make) -> None:
    network, x = made(make)
    state = torch.get_rng_state()
    assert Plans().of(network, x) is None
    assert torch.equal(torch.get_rng_state(), state)  # or a run that is resumed, and plans again, would draw others


def frozen(network: nn.Module) -> None:
    network.get_submodule("norm").eval()


def hooked(network: nn.Module) -> None:
    network.get_submodule("second").register_forward_hook(lambda *_: None)


def replaced(network: nn.Module) -> None:
    layer = network.get_submodule("first")
    layer.forward = layer.forward


def other_dtype(network: nn.Module) -> None:
    network.get_submodule("last").float()


@pytest.mark.parametrize("change", [frozen, hooked, replaced, other_dtype])
def test_a_network_that_was_changed_is_left_to_autograd(change: Callable[[nn.Module], None]) -> None:
    network, x = made(Residual)
    plans = Plans()
    assert plans.of(network, x) is not None
    change(network)
    assert plans.of(network, x) is None


def test_settings_that_were_changed_have_a_plan_of_their_own() -> None:
    network, x = made(lambda: Written(behind_identity))
    plans = Plans()
    first = plans.of(network, x)
    network.get_submodule("conv").stride = (2, 2)  # type: ignore[assignment]
    second = plans.of(network, x)
    assert first is not second
    assert second is not None
    network.get_submodule("norm").track_running_stats = False  # type: ignore[assignment]
    assert_close(planned_passes(copy.deepcopy(network), x, COUNTS), passes(network, x, COUNTS))


def test_nothing_is_left_of_what_was_seen() -> None:
    network, x = made(NETWORKS["norm first"])
    plans = Plans()
    plan = plans.of(network, x)
    assert plan is not None
    outputs, run = plan.forward(x, COUNTS.to(x) / 14, 14, statistics=True)
    plan.backward(run, *slopes(outputs, 0))
    plans.forget()
    held = [value for step in plan.steps for value in vars(step).values() if isinstance(value, Tensor)]
    assert len(held) == 6
    assert not any(value.any() for value in held)


def test_other_threads_may_use_networks_meanwhile() -> None:
    """Nothing of torch is changed for a moment, as a tracer of torch.fx would."""
    errors: list[Exception] = []
    network, x = made(NETWORKS["mlp"])
    done = threading.Event()

    def use() -> None:
        try:
            while not done.is_set():
                network(x)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    for _ in range(20):
        assert Plan.of(made(NETWORKS["mlp"])[0], x.shape[1:]) is not None
    done.set()
    thread.join()
    assert errors == []


def test_images_that_are_not_for_the_kernels_are_left_to_autograd() -> None:
    network, x = made(NETWORKS["linear"])
    assert Plans().of(network, x.half()) is None
    assert Plans().of(network, x.flatten(2)) is None
    assert Plans().of(network, x.to("meta")) is None


def test_a_new_layer_has_a_new_plan() -> None:
    network, x = made(NETWORKS["linear"])
    assert isinstance(network, nn.Sequential)
    plans = Plans()
    first = plans.of(network, x)
    assert plans.of(network, x) is first
    network[1] = nn.Linear(192, 7).double()
    second = plans.of(network, x)
    assert second is not None
    assert second.forward(x, COUNTS.to(x) / 14, 14)[0][0].shape == (5, 7)


def test_plans_are_not_pickled_or_copied() -> None:
    network, x = made(NETWORKS["linear"])
    plans = Plans()
    plans.of(network, x)
    for other in (pickle.loads(pickle.dumps(plans)), copy.deepcopy(plans)):
        assert vars(other) == vars(Plans())
