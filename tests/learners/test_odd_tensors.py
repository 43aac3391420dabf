"""Whatever kind of tensor `observe` is given, it is learned from or refused in one sentence."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from autorecall import ARM, ER, SLDA, Learner, Naive
from autorecall.errors import InputError
from autorecall.learners.shared import tensors

from .test_wrong_inputs import assert_refused
from .worlds import any_method, assert_same, batch, conv, learner, mlp

X, Y = batch(0)


class Named(Tensor):
    """A subclass such as those of torchvision, which hold usual values."""


def released(given: Tensor) -> Tensor:
    """A tensor whose memory is gone, as sharding libraries leave them."""
    found = given.clone()
    found.untyped_storage().resize_(0)
    return found


def jagged(given: Tensor) -> Tensor:
    return torch.nested.nested_tensor([given, given], layout=torch.jagged)


def nested(given: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a prototype
        return torch.nested.nested_tensor(list(given))


def fake(given: Tensor) -> Tensor:
    return FakeTensorMode().from_tensor(given)


def compressed(given: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a prototype
        return given.flatten(1).to_sparse_csr() if given.dim() > 1 else given[None].to_sparse_csr()


REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "sparse": (lambda given: given.to_sparse(), "layout torch.sparse_coo; expected a dense tensor: use "),
    "compressed": (compressed, "layout torch.sparse_csr; expected a dense tensor"),
    "meta": (lambda given: given.to("meta"), "is on the meta device, which holds no values"),
    "fake": (fake, "is a FakeTensor; expected a torch.Tensor that holds its own values"),
    "jagged": (jagged, "is a NestedTensor"),
    "nested": (nested, "is a nested tensor"),
    "released": (released, "has lost its memory"),
    "complex": (lambda given: given.to(torch.complex64), "has dtype torch.complex64"),
    "conjugate": (lambda given: given.to(torch.complex64).conj(), "has dtype torch.complex64"),
    "boolean": (lambda given: given > 0, "has dtype torch.bool"),
    "huge": (lambda given: given[:1].expand(2**50, *given.shape[1:]), "more than the memory of this machine"),
    "quantized": (lambda given: torch.quantize_per_tensor(given.float(), 0.1, 0, torch.quint8), "the quantized dtype"),
    "float8": (lambda given: given.float().to(torch.float8_e4m3fn), "has dtype torch.float8_e4m3fn"),
    "mkldnn": (lambda given: given.float().to_mkldnn(), "layout torch._mkldnn"),
    "no number": (lambda given: given.flatten()[0], "has shape"),
    "no element": (lambda given: given[..., :0], "has shape"),
}


@pytest.mark.filterwarnings("ignore:.*(q|Q)uant:UserWarning")
@pytest.mark.filterwarnings("ignore:.*quant:DeprecationWarning")
@any_method
def test_odd_tensors_are_refused_in_one_sentence(method: str) -> None:
    student = learner(method, conv())
    for change, says in REFUSED.values():
        for which in ("x", "y"):
            x, y = (change(X), Y) if which == "x" else (X, change(Y))
            assert_refused(student, x, y, f"{which} {says}" if says.startswith(("is ", "has ")) else says)
    student.observe(X, Y)


ACCEPTED: dict[str, Callable[[Tensor], Tensor]] = {
    "parameter": lambda given: nn.Parameter(given, requires_grad=given.is_floating_point()),
    "subclass": lambda given: given.as_subclass(Named),
    "strided": lambda given: given.repeat_interleave(2, 0)[::2],
    "flipped": lambda given: given.flip(0).flip(0),
    "offset": lambda given: torch.cat([given, given])[len(given) :],
    "result": lambda given: given * 1 if not given.is_floating_point() else given.clone().requires_grad_() * 1.0,
    "negated": lambda given: torch.complex(given, -given).conj().imag if given.is_floating_point() else given,
    "inference": lambda given: _in_inference_mode(given),
}


def _in_inference_mode(given: Tensor) -> Tensor:
    with torch.inference_mode():
        return given.clone()


@any_method
def test_values_count_and_not_how_they_are_held(method: str) -> None:
    given, usual = learner(method, conv()), learner(method, conv())
    for number, (kind, odd) in enumerate(ACCEPTED.items()):
        x, y = batch(number)
        assert_same(given.observe(odd(x), odd(y)), usual.observe(x, y))
        assert_same(given.state_dict(), usual.state_dict(), where=kind)


@any_method
def test_an_expanded_image_is_learned_as_its_copies(method: str) -> None:
    given, usual = learner(method, mlp()), learner(method, mlp())
    for number in range(4):
        x, y = batch(number)
        x, y = x[:1].expand(6, -1, -1, -1), y[:1].expand(6)
        assert_same(given.observe(x, y), usual.observe(x.contiguous(), y.contiguous()))


@pytest.mark.parametrize("dtype", tensors.INTEGERS)
def test_labels_may_be_any_kind_of_integer(dtype: torch.dtype) -> None:
    given, usual = learner("er", mlp()), learner("er", mlp())
    assert_same(given.observe(X, Y.to(dtype)), usual.observe(X, Y))


def test_a_label_that_is_too_large_for_a_signed_integer_is_named_as_it_is() -> None:
    y = torch.tensor([2**64 - 3] * 6, dtype=torch.uint64)
    assert_refused(Naive(mlp()), X, y, f"the label {2**64 - 3} but the network has 6 outputs")


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", True])
@any_method
def test_a_number_of_threads_that_is_none_is_refused(method: str, threads: object) -> None:
    student = learner(method, mlp())
    student.threads = threads  # type: ignore[assignment]
    assert_refused(student, X, Y, f"learner.threads is {threads!r}; expected a whole number from 1, or None")


@pytest.mark.parametrize("make", [Naive, ER, ARM])
def test_a_network_without_parameters_is_refused(make: Callable[..., Learner]) -> None:
    elsewhere = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    with pytest.raises(InputError, match="no parameters"):
        make(nn.Flatten(), optimizer=elsewhere)
    with pytest.raises(InputError, match="no parameters"):
        SLDA(nn.Flatten())


@pytest.mark.parametrize(
    "error", [AssertionError(), IndexError("a\nb"), KeyError("\x1b[2J"), ZeroDivisionError("x" * 999)]
)
def test_whatever_a_network_raises_for_an_input_is_one_sentence(error: Exception) -> None:
    class Raises(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(60, 6)

        def forward(self, x: Tensor) -> Tensor:
            raise error

    with pytest.raises(InputError, match="the network cannot take") as caught:
        Naive(Raises()).observe(X, Y)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_refusals_keep_even_the_number_of_classes() -> None:
    student = Naive(mlp())
    before = copy.deepcopy(student.state_dict())
    with pytest.raises(InputError, match="the label 7"):
        student.observe(X, Y + 7 - Y)
    assert_same(student.state_dict(), before)
    student.observe(X, Y)
    assert student.classes == 6
