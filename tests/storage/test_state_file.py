"""Saved states come back bit for bit, and any other file gives one sentence."""

from __future__ import annotations

import hashlib
import json
import math
import os
import resource
import struct
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from autorecall.errors import DataError, WriteError
from autorecall.storage import state_file
from autorecall.storage.state_file import CONTAINER, LARGEST, read_state, write_state


def assert_same(found: object, expected: object) -> None:
    """Two nested states are equal, bit for bit."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert isinstance(found, dict)
        assert list(found) == list(expected)
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, list):
        assert isinstance(found, list)
        assert len(found) == len(expected)
        for mine, theirs in zip(found, expected, strict=True):
            assert_same(mine, theirs)
    elif isinstance(expected, Tensor):
        assert isinstance(found, Tensor)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    else:
        assert found == expected or (found != found and expected != expected)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# There and back


TENSORS = [
    torch.arange(6).reshape(2, 3),
    torch.tensor(3),
    torch.tensor(2.5, dtype=torch.float64),
    torch.zeros(0),
    torch.zeros(0, 4),
    torch.tensor([math.nan, math.inf, -0.0]),
    torch.tensor([True, False]),
    torch.arange(5, dtype=torch.uint8),
    torch.ones(3, dtype=torch.bfloat16),
    torch.ones(3, dtype=torch.float16),
    torch.arange(12).reshape(3, 4).t(),
    torch.arange(12)[::3],
    torch.rand(1, 3).expand(4, 3),
    torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    nn.Parameter(torch.rand(2, 2)),
    torch.get_rng_state(),
]


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda tensor: f"{tensor.dtype} {tuple(tensor.shape)}")
def test_a_tensor_comes_back_as_it_was(tmp_path: Path, tensor: Tensor) -> None:
    write_state(tmp_path / "state", {"tensor": tensor})
    found = read_state(tmp_path / "state")["tensor"]
    assert isinstance(found, Tensor)
    assert type(found) is Tensor
    assert (found.dtype, found.shape, found.requires_grad) == (tensor.dtype, tensor.shape, False)
    assert bits(found) == bits(tensor)
    assert found.data_ptr() % 64 == 0


def test_the_layout_in_memory_comes_back(tmp_path: Path) -> None:
    lying = torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    write_state(tmp_path / "state", {"lying": lying})
    found = read_state(tmp_path / "state")["lying"]
    assert isinstance(found, Tensor)
    assert found.stride() == lying.stride()


def test_tensors_that_share_memory_come_back_apart(tmp_path: Path) -> None:
    whole = torch.arange(10.0)
    write_state(tmp_path / "state", {"whole": whole, "part": whole[2:5], "again": whole})
    found = read_state(tmp_path / "state")
    assert_same(found, {"whole": torch.arange(10.0), "part": torch.arange(2.0, 5.0), "again": torch.arange(10.0)})
    assert isinstance(found["whole"], Tensor)
    found["whole"].zero_()
    assert_same(found["again"], torch.arange(10.0))


def test_names_that_look_alike_are_kept_apart(tmp_path: Path) -> None:
    state = {"a/b": torch.zeros(1), "a": {"b": torch.ones(1), "": torch.full((1,), 2.0)}, "": [torch.full((1,), 3.0)]}
    write_state(tmp_path / "state", state)
    assert_same(read_state(tmp_path / "state"), state)


def test_equal_states_are_equal_files(tmp_path: Path) -> None:
    """Safetensors itself puts the keys of the header in any order, another one each time."""
    state = {"ü": torch.ones(3), "b": {"a": torch.zeros(2, dtype=torch.uint8), "step": 3}, "c": torch.arange(3)}
    for number in range(20):
        write_state(tmp_path / str(number), state)
    (content,) = {(tmp_path / str(number)).read_bytes() for number in range(20)}
    length = int.from_bytes(content[:8], "little")
    assert length % 8 == 0
    with safetensors.safe_open(tmp_path / "0", "pt") as file:  # as anyone would read it
        assert sorted(file.metadata()) == ["format", "sha256", "state"]
        assert sorted(file.keys()) == ["0/ü", "1/b/a", "2/c"]
        assert_same(file.get_tensor("2/c"), torch.arange(3))
    assert_same(read_state(tmp_path / "0"), state)


plain = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5)
nested = st.recursive(
    plain | st.sampled_from(TENSORS[:4]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4).filter(lambda name: not name.startswith("$")), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(nested)
def test_any_nested_state_comes_back(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    path = tmp_path_factory.mktemp("states") / "state"
    write_state(path, {"value": value})
    assert_same(read_state(path)["value"], value)
    assert names(path.parent) == {"state"}


@pytest.mark.parametrize("value", [{1: 2}, {"$float": "x"}, {3}, object(), b"bytes", 1j, {"a": [print]}])
def test_what_cannot_be_saved_is_not(tmp_path: Path, value: object) -> None:
    with pytest.raises(TypeError, match="cannot save"):
        write_state(tmp_path / "state", {"value": value})
    assert names(tmp_path) == set()


def test_half_a_letter_comes_back_but_is_no_name_for_a_tensor(tmp_path: Path) -> None:
    state = {"\ud800": "\udfff"}
    write_state(tmp_path / "state", state)
    with pytest.raises(UnicodeEncodeError):
        write_state(tmp_path / "state", {"\ud800": torch.ones(1)})
    assert_same(read_state(tmp_path / "state"), state)
    assert names(tmp_path) == {"state"}


# Files that are damaged, or not ours


STATE = {"weights": torch.arange(40.0), "step": 3, "numbers": [1.5, math.nan, None, "text"]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "state"
    write_state(path, STATE)
    return path.read_bytes()


def refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_state(path)
    assert str(caught.value) == f"{path} is damaged, or was not saved by autorecall; use another"


def test_no_changed_bit_goes_unnoticed(tmp_path: Path, whole: bytes) -> None:
    """Each bit of every third byte: refused, or in a place that means nothing, and then the state is the same."""
    unnoticed = 0
    for place in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        (tmp_path / "state").write_bytes(damaged)
        try:
            assert_same(read_state(tmp_path / "state"), STATE)
            unnoticed += 1
        except DataError:
            pass
    assert unnoticed < 5  # blanks at the end of the header


def test_a_cut_or_longer_file_is_refused(tmp_path: Path, whole: bytes) -> None:
    for length in range(0, len(whole), 7):
        refused(tmp_path / "state", whole[:length])
    refused(tmp_path / "state", whole + b"\0")
    refused(tmp_path / "state", whole + whole)


def lying(header: object, body: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def entry(kind: str, shape: list[int], start: int, end: int) -> dict[str, object]:
    return {"dtype": kind, "shape": shape, "data_offsets": [start, end]}


LIES = {
    "no header": b"",
    "a header longer than the file": lying({}, length=1000),
    "a huge header": lying({}, length=2**62),
    "a negative header": lying({}, length=2**64 - 1),
    "no JSON": lying(b"{'a': 1}"),
    "a list": lying([]),
    "no metadata": lying({}),
    "metadata that are none": lying({"__metadata__": {"format": CONTAINER}}),
    "a deep header": lying(b'{"a":' * 100_000),
    "100 levels": lying(b'{"a":' * 100 + b"1" + b"}" * 100),
    "offsets beyond the file": lying({"a": entry("F32", [4], 0, 16)}),
    "offsets that overlap": lying({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 0, 4)}, b"1234"),
    "offsets that leave a hole": lying({"a": entry("F32", [1], 4, 8)}, b"12345678"),
    "offsets that run backwards": lying({"a": entry("F32", [1], 4, 0)}, b"1234"),
    "a shape larger than its bytes": lying({"a": entry("F32", [2**20], 0, 4)}, b"1234"),
    "a shape beyond all numbers": lying({"a": entry("F32", [2**62, 2**62], 0, 4)}, b"1234"),
    "a huge shape of nothing": lying({"a": entry("F32", [2**63, 0], 0, 0)}),
    "a negative shape": lying({"a": entry("F32", [-1], 0, 4)}, b"1234"),
    "an unknown type": lying({"a": entry("F99", [1], 0, 4)}, b"1234"),
    "a type that torch lacks": lying({"a": entry("F4", [2], 0, 1)}, b"1"),
    "a pickle": b"\x80\x04cos\nsystem\n(S'echo'\ntR.",
}


@pytest.mark.parametrize("lie", LIES)
def test_a_file_that_lies_about_itself_is_refused(tmp_path: Path, lie: str) -> None:
    refused(tmp_path / "state", LIES[lie])


def test_a_safetensors_file_of_others_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "state", safetensors.torch.save({"a": torch.ones(3)}, {"format": "pt"}))


@pytest.mark.parametrize(
    "nested",
    [
        "[" * 100_000,
        "[1]",
        "{",
        '{"a": {"$tensor": "none", "$order": []}}',
        '{"a": {"$float": []}}',
        '{"a": {"$float": 1' + "0" * 400 + "}}",
    ],
    ids=lambda nested: nested[:40],
)
def test_a_right_checksum_does_not_make_a_wrong_state_right(tmp_path: Path, nested: str) -> None:
    refused(tmp_path / "state", signed(nested, {}))


def signed(nested: str, tensors: dict[str, Tensor]) -> bytes:
    """A file of ours, made here: what is on disks has to be read for as long as it lies there."""
    digest = hashlib.sha256(nested.encode())
    for name, tensor in tensors.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode() + bits(tensor))
    metadata = {"format": "autorecall state 1", "state": nested, "sha256": digest.hexdigest()}
    return safetensors.torch.save(tensors, metadata)


def test_a_file_of_ours_is_read(tmp_path: Path) -> None:
    nested = '{"a": {"$tensor": "0/a", "$order": [0]}, "b": {"$float": "nan"}, "c": [1, null]}'
    (tmp_path / "state").write_bytes(signed(nested, {"0/a": torch.ones(2)}))
    assert_same(read_state(tmp_path / "state"), {"a": torch.ones(2), "b": math.nan, "c": [1, None]})


@pytest.mark.parametrize("order", ['{"x": 1}', "[5]", "[]", "[0, 0]", '["a"]', "null", "0"])
def test_an_order_of_axes_that_is_none_is_refused(tmp_path: Path, order: str) -> None:
    refused(tmp_path / "state", signed(f'{{"a": {{"$tensor": "0", "$order": {order}}}}}', {"0": torch.ones(2)}))


@pytest.mark.parametrize("times", [0, 2, 100])
def test_a_tensor_that_is_named_more_than_once_or_not_at_all_is_refused(tmp_path: Path, times: int) -> None:
    """A small file could ask for more memory than there is."""
    nested = json.dumps({"a": [{"$tensor": "0", "$order": [0]}] * times})
    refused(tmp_path / "state", signed(nested, {"0": torch.ones(2)}))


@pytest.mark.parametrize("size", [2**30, LARGEST])
@pytest.mark.parametrize(
    "header",
    [b"", lying({"__metadata__": {"format": CONTAINER}}), lying({}, length=2**29)],
    ids=["empty", "ours", "long"],
)
def test_of_a_large_file_that_is_not_ours_only_the_header_is_read(tmp_path: Path, header: bytes, size: int) -> None:
    (tmp_path / "state").write_bytes(header)
    os.truncate(tmp_path / "state", size)  # takes no space on the disk
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match="is damaged, or was not saved"):
        read_state(tmp_path / "state")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # of 1 GiB and more


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_file, "LARGEST_HEADER", 1000)
    with pytest.raises(WriteError, match="of plain values, such as lists of numbers, could not be read again; keep"):
        write_state(tmp_path / "state", {"numbers": list(range(1000))})
    assert names(tmp_path) == set()


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, sentence in (("pipe", "is a pipe"), (".", "is a folder"), ("gone", "cannot read .*: No such file")):
        with pytest.raises(DataError, match=sentence):
            read_state(tmp_path / name)


def test_a_file_far_too_large_is_refused_unread(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    os.truncate(tmp_path / "state", LARGEST + 1)  # takes no space on the disk
    with pytest.raises(DataError, match=r"is larger than 16 GiB; that is not a file of autorecall$"):
        read_state(tmp_path / "state")
