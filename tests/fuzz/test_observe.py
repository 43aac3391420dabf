"""Whatever tensors `observe` is given, by whichever method: finite numbers and a finite state, or one sentence."""

from __future__ import annotations

import copy
import math
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from learners.worlds import ALL, CLASSES, assert_same, batch, conv, learner, mlp, needs, normed, spoilt
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from autorecall import Learner
from autorecall.errors import DivergedError, InputError

from .worlds import no_hang

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no alarm of processor time"),
    pytest.mark.filterwarnings("ignore"),  # torch's own, about prototypes and deprecated kinds of tensors
]
ODDITIES = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

Change = Callable[[Tensor], Tensor]


class Subclass(Tensor):
    """Of the kind that datasets return."""


def in_inference_mode(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return x.clone()


def released(x: Tensor) -> Tensor:
    x = x.clone()
    x.untyped_storage().resize_(0)
    return x


CHANGES: dict[str, Change] = {
    "compressed columns": lambda x: x.flatten(1).to_sparse_csc(),
    "compressed rows": lambda x: x.flatten(1).to_sparse_csr(),
    "compressed blocks": lambda x: x.flatten(1).to_sparse_bsr((1, 1)),
    "sparse": lambda x: x.to_sparse(),
    "hybrid": lambda x: x.to_sparse(1),
    "mkldnn": lambda x: x.to_mkldnn(),
    "meta": lambda x: x.to("meta"),
    "fake": lambda x: FakeTensorMode().from_tensor(x),
    "nested": lambda x: torch.nested.nested_tensor(list(x)),
    "jagged": lambda x: torch.nested.nested_tensor(list(x), layout=torch.jagged),
    "quantized": lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8),
    "per channel": lambda x: torch.quantize_per_channel(
        x.float(), torch.ones(len(x)), torch.zeros(len(x)), 0, torch.qint8
    ),
    "parameter": lambda x: nn.Parameter(x, requires_grad=x.is_floating_point()),
    "subclass": lambda x: x.as_subclass(Subclass),
    "leaf": lambda x: x.clone().requires_grad_(),
    "result": lambda x: x.clone().requires_grad_() * 1,
    "inference": in_inference_mode,
    "released": released,
    "conjugate": lambda x: torch.complex(x, x).conj(),
    "negated": lambda x: torch.complex(x, -x).conj().imag,
    "real part": lambda x: torch.complex(x, x).real,
    "expanded": lambda x: x[:1].expand_as(x),
    "huge": lambda x: x[:1].expand(2**40, *x.shape[1:]),
    "wide": lambda x: x[..., :1].expand(*x.shape[:-1], 2**45),
    "deep": lambda x: x.reshape(*x.shape, *(1,) * (60 - x.dim())),
    "transposed": lambda x: x.transpose(0, -1),
    "strided": lambda x: x.repeat_interleave(2, 0)[::2],
    "overlapping": lambda x: x.flatten().as_strided(x.shape, (1,) * x.dim()),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "empty": lambda x: x[:0],
    "no values": lambda x: x[..., :0],
    "one": lambda x: x[:1],
    "flat": lambda x: x.flatten(),
    "scalar": lambda x: x.flatten()[0],
    "column": lambda x: x[:, None],
    "short": lambda x: x[:-1],
    "shared": lambda x: x.share_memory_(),  # type: ignore[no-untyped-call]
}
LAST = ("released", "huge", "wide")  # torch itself takes hours for a change of such tensors, or dies of it
DTYPES = sorted((kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)), key=str)
NUMBERS = [0.0, 0.5, 1.0, -1.0, 255.0, 1e-45, -1e-310, 1e10, 1e19, -1e25, 1e30, 1e38, -3e38, 1e155, 1e308]
NUMBERS += [math.nan, math.inf, -math.inf]
LABELS = [0, 1, 5, CLASSES, -1, 127, 2**31, 2**63 - 1, -(2**63)]
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "perceptron": lambda: mlp().float(),
    "double perceptron": mlp,
    "convolutions": lambda: conv().float(),
    "double convolutions": conv,
    "batch-norm": normed,
    "half perceptron": lambda: mlp().half(),
}


@dataclass(frozen=True)
class Recipe:
    """How a tensor is made: drawn instead of the tensor, which hypothesis might print, and not all can be read."""

    numbers: tuple[float, ...]
    places: int
    dtype: torch.dtype | None
    changes: tuple[str, ...]

    def make(self, x: Tensor) -> Tensor:
        """As far as torch can make it."""
        x = x.clone()
        for start, number in enumerate(self.numbers):
            with suppress(RuntimeError, OverflowError):
                x.view(-1)[start : start + self.places] = number
        if self.dtype is not None:
            with suppress(Exception):
                x = x.to(self.dtype)
        for name in sorted(self.changes, key=lambda name: LAST.index(name) if name in LAST else -1):
            with suppress(Exception):
                x = CHANGES[name](x)
        return x


PLAIN = Recipe((), 0, None, ())


def recipes(numbers: Sequence[float]) -> st.SearchStrategy[Recipe]:
    return st.builds(
        Recipe,
        st.lists(st.sampled_from(numbers), max_size=3).map(tuple),
        st.sampled_from([1, 7, 999]),
        st.none() | st.sampled_from(DTYPES),
        st.lists(st.sampled_from(sorted(CHANGES)), max_size=2, unique=True).map(tuple),
    )


XS, YS, NONE = recipes(NUMBERS), recipes(LABELS), st.just(PLAIN)
BATCHES = st.tuples(st.sampled_from([6, 6, 2, 1]), st.tuples(XS, NONE) | st.tuples(NONE, YS) | st.tuples(XS, YS))


def assert_learned_or_refused(student: Learner, x: Tensor, y: Tensor) -> bool:
    """Whether the learner may go on."""
    before = copy.deepcopy(student.state_dict())
    try:
        with no_hang():
            numbers = student.observe(x, y)
    except (InputError, DivergedError) as error:
        said = str(error)
        assert said.isprintable()
        assert len(said) < 1000
        spoiled = isinstance(error, DivergedError) and error.spoiled
        if not spoiled:
            assert_same(student.state_dict(), before)
        return not spoiled
    weightless = {name for name, value in vars(getattr(student, "config")).items() if value == 0}  # noqa: B009
    for name, number in numbers.items():
        assert not math.isinf(number) or name in weightless, name
        assert not math.isnan(number) or name not in ("loss", "bound"), name
    assert spoilt(student) == []
    return True


@pytest.mark.parametrize("kind", NETWORKS)
@ODDITIES
@given(
    st.sampled_from(ALL),
    st.booleans(),
    st.sampled_from([0, 1, 3]),
    st.lists(BATCHES, min_size=1, max_size=3),
)
def test_any_batch_is_learned_or_refused(
    kind: str, method: str, adam: bool, observed: int, batches: list[tuple[int, tuple[Recipe, Recipe]]]
) -> None:
    network = NETWORKS[kind]()
    dtype = next(network.parameters()).dtype
    needs(dtype)
    student = learner(method, network, torch.optim.Adam(network.parameters()) if adam else None)
    for number in range(observed):
        x, y = batch(number)
        if not assert_learned_or_refused(student, x.to(dtype), y):
            return
    for number, (count, (of_x, of_y)) in enumerate(batches, start=observed):
        x, y = batch(number, count)
        if not assert_learned_or_refused(student, of_x.make(x.to(dtype)), of_y.make(y)):
            return
    x, y = batch(7)
    assert_learned_or_refused(student, x.to(dtype), y)
