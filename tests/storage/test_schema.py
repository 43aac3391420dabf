"""Typed values to JSON and back."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import pytest

from autorecall.errors import ConfigError
from autorecall.storage.schema import decode, differences, to_json


@dataclass(frozen=True)
class Circle:
    kind: ClassVar[str] = "circle"
    radius: float = 1.0


@dataclass(frozen=True)
class Square:
    kind: ClassVar[str] = "square"
    side: int
    note: str | None = None


@dataclass(frozen=True)
class Drawing:
    shape: Circle | Square
    inner: Circle = field(default_factory=Circle)
    colour: Literal["red", "blue"] = "red"
    dots: tuple[int, ...] = ()
    rows: list[list[float]] = field(default_factory=list)
    sizes: dict[str, float] = field(default_factory=dict)
    filled: bool = False


WHOLE = Drawing(Square(3, "a note"), Circle(0.5), "blue", (1, 2), [[1.0], [2.5, 3.0]], {"a": 1.5}, True)


@pytest.mark.parametrize("drawing", [WHOLE, Drawing(Circle()), Drawing(Square(1))])
def test_what_became_json_text_comes_back_the_same(drawing: Drawing) -> None:
    text = json.dumps(to_json(drawing), allow_nan=False)
    assert decode(Drawing, json.loads(text), "drawing") == drawing


def test_json_says_which_of_several_kinds_a_value_is() -> None:
    values = to_json(WHOLE)
    assert values["shape"] == {"kind": "square", "side": 3, "note": "a note"}
    assert values["dots"] == [1, 2]


def test_fields_that_are_left_out_take_their_defaults() -> None:
    assert decode(Drawing, {"shape": {"kind": "circle"}}, "drawing") == Drawing(Circle())


def test_a_whole_number_may_stand_for_a_float_and_becomes_one() -> None:
    circle = decode(Circle, {"radius": 2}, "circle")
    assert circle == Circle(2.0)
    assert isinstance(circle, Circle)
    assert type(circle.radius) is float


@dataclass(frozen=True)
class Animal(ABC):
    method: ClassVar[str]

    @abstractmethod
    def sound(self) -> str: ...


@dataclass(frozen=True)
class Bird(Animal):
    """Abstract as well, so that no file can name it."""

    method: ClassVar[str] = "bird"
    wings: int = 2


@dataclass(frozen=True)
class Duck(Bird):
    method: ClassVar[str] = "duck"

    def sound(self) -> str:
        return "quack"


@dataclass(frozen=True)
class Mandarin(Duck):
    method: ClassVar[str] = "mandarin"
    colours: int = 7


@dataclass(frozen=True)
class Zoo:
    animal: Animal


@pytest.mark.parametrize("animal", [Duck(wings=1), Mandarin(colours=3)])
def test_an_abstract_class_stands_for_all_below_it(animal: Animal) -> None:
    values = to_json(Zoo(animal))
    found = decode(Zoo, values, "zoo")
    assert found == Zoo(animal)
    assert isinstance(found, Zoo)
    assert type(found.animal) is type(animal)


def test_what_is_not_below_an_abstract_class_is_refused() -> None:
    for name in ("bird", "circle"):
        with pytest.raises(ConfigError) as caught:
            decode(Zoo, {"animal": {"method": name}}, "zoo")
        assert str(caught.value) == f"zoo.animal names '{name}'; expected a kind or method of duck, mandarin"


CIRCLE: dict[str, object] = {"kind": "circle"}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([], "drawing is []; expected an object with the fields of Drawing"),
        (None, "drawing is None; expected an object with the fields of Drawing"),
        ({}, "drawing.shape is missing; add it"),
        ({"shape": CIRCLE, "colr": "red"}, "drawing.colr is not a field of Drawing; remove it"),
        ({"shape": CIRCLE, "colour": "green"}, "drawing.colour is 'green'; expected one of red, blue"),
        ({"shape": CIRCLE, "colour": ["red"]}, "drawing.colour is ['red']; expected one of red, blue"),
        ({"shape": {"kind": "star"}}, "drawing.shape names 'star'; expected a kind or method of circle, square"),
        ({"shape": {"kind": 3}}, "drawing.shape names 3; expected a kind or method of circle, square"),
        ({"shape": {"kind": ["circle"]}}, "drawing.shape names ['circle']; expected a kind or method"),
        ({"shape": {}}, "drawing.shape names None; expected a kind or method of circle, square"),
        ({"shape": "circle"}, "drawing.shape names None; expected a kind or method of circle, square"),
        ({"shape": {"kind": "square"}}, "drawing.shape.side is missing; add it"),
        ({"shape": {"kind": "square", "side": 1.5}}, "drawing.shape.side is 1.5; expected a int"),
        ({"shape": {"kind": "square", "side": 1.0}}, "drawing.shape.side is 1.0; expected a int"),
        ({"shape": {"kind": "square", "side": True}}, "drawing.shape.side is True; expected a int"),
        ({"shape": {"kind": "square", "side": "1"}}, "drawing.shape.side is '1'; expected a int"),
        ({"shape": {"kind": "square", "side": None}}, "drawing.shape.side is None; expected a int"),
        ({"shape": {"kind": "square", "side": 1, "note": 1}}, "drawing.shape.note is 1; expected a str"),
        ({"shape": {"kind": "circle", "radius": False}}, "drawing.shape.radius is False; expected a float"),
        ({"shape": {"kind": "circle", "radius": "1"}}, "drawing.shape.radius is '1'; expected a float"),
        ({"shape": {"kind": "circle", "radius": None}}, "drawing.shape.radius is None; expected a float"),
        ({"shape": CIRCLE, "filled": 1}, "drawing.filled is 1; expected a bool"),
        ({"shape": CIRCLE, "inner": 5}, "drawing.inner is 5; expected an object with the fields of Circle"),
        ({"shape": CIRCLE, "dots": 5}, "drawing.dots is 5; expected a list"),
        ({"shape": CIRCLE, "dots": "12"}, "drawing.dots is '12'; expected a list"),
        ({"shape": CIRCLE, "dots": [1, "2"]}, "drawing.dots[1] is '2'; expected a int"),
        ({"shape": CIRCLE, "rows": [[1.0], 2.0]}, "drawing.rows[1] is 2.0; expected a list"),
        ({"shape": CIRCLE, "rows": [[1.0, None]]}, "drawing.rows[0][1] is None; expected a float"),
        ({"shape": CIRCLE, "sizes": []}, "drawing.sizes is []; expected an object"),
        ({"shape": CIRCLE, "sizes": {"a": "b"}}, "drawing.sizes.a is 'b'; expected a float"),
    ],
)
def test_a_wrong_value_is_refused_in_one_sentence_that_names_its_place(values: object, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        decode(Drawing, values, "drawing")
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


LARGE = ["x" * 10**6, nested(100), nested(900), [None] * 10**6, {"y" * 10**6: "1"}, -(10**4000)]
NAMES = ["shape", "inner", "colour", "dots", "rows", "sizes", "filled", "z" * 10**6]


@pytest.mark.parametrize("value", LARGE, ids=range(len(LARGE)))
@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_sentences_stay_short_whatever_a_file_holds(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        decode(Drawing, {"shape": {"kind": "circle"}, name: value}, "drawing")
    assert len(str(caught.value)) < 300


def test_a_whole_number_too_large_for_a_float_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^circle\.radius is "):
        decode(Circle, {"radius": 10**400}, "circle")


@pytest.mark.parametrize("text", ["1e999", "-1e999", "NaN", "Infinity"])
def test_a_number_that_is_not_finite_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^drawing\.rows\[0\]\[1\] is -?(inf|nan); expected a finite number"):
        decode(Drawing, json.loads(f'{{"shape": {{"kind": "circle"}}, "rows": [[1.0, {text}]]}}'), "drawing")


@pytest.mark.parametrize("number", [2**63 - 1, 1 - 2**63])
def test_a_whole_number_of_64_bits_comes_back(number: int) -> None:
    assert decode(Square, {"side": number}, "square") == Square(number)


@pytest.mark.parametrize("number", [2**63, -(2**63), 10**30, 10**400, 10**5000], ids=lambda number: number.bit_length())
def test_a_whole_number_of_more_than_64_bits_is_refused(number: int) -> None:
    with pytest.raises(ConfigError, match=r"^square\.side is .*; expected a whole number of less than 2\*") as caught:
        decode(Square, {"side": number}, "square")
    assert len(str(caught.value)) < 300


def test_what_cannot_even_be_named_is_refused_all_the_same() -> None:
    for name in ("dots", "inner", "colour", "filled", "shape"):
        with pytest.raises(ConfigError, match=rf"^drawing\.{name}(\[0\])? "):
            decode(Drawing, {"shape": CIRCLE} | {name: nested(100_000)}, "drawing")


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J", "\u202e", "\ud800"])
def test_the_name_of_an_unknown_field_is_one_that_can_be_printed(name: str) -> None:
    for values in ({"shape": CIRCLE, name: 1}, {"shape": CIRCLE, "sizes": {name: "b"}}):
        with pytest.raises(ConfigError) as caught:
            decode(Drawing, values, "drawing")
        assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (Drawing(Circle(2.0), rows=[], sizes={}), {}),
        (Drawing(Circle(1.0)), {"shape.radius": 2.0}),
        (Drawing(Circle(2.0), inner=Circle(3.0)), {"inner.radius": 1.0}),
        (Drawing(Circle(2.0), colour="blue", filled=True), {"colour": "red", "filled": False}),
        (Drawing(Circle(2.0), dots=(1,)), {"dots": []}),
        (Drawing(Square(1)), {"shape.kind": "circle", "shape.radius": 2.0}),
    ],
)
def test_differences_name_the_fields_as_the_command_line_does(other: Drawing, expected: Mapping[str, object]) -> None:
    assert differences(Drawing(Circle(2.0)), other) == expected
