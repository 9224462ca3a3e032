"""Records are read by the types of their fields, and written as they are read."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import pytest
from tests.rows import each

from ullage.ground.protocol.plain import (
    JSON,
    STRICT_JSON,
    As,
    From,
    Mark,
    Misfit,
    Only,
    at_least,
    document_of,
    figure,
    plain,
)

if TYPE_CHECKING:
    from ullage.facts.gpus import Gpu


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(NamedTuple):
    x: int
    y: float


@dataclass(frozen=True, slots=True)
class Size:
    width: Annotated[int, at_least(1)] = 1
    height: int = 1


@dataclass(frozen=True, slots=True)
class Shape:
    name: Annotated[str, Mark.NAME]
    size: Annotated[Size, Mark.FLAT] = field(default_factory=Size)
    at: Annotated[Point | None, As("place")] = None
    colour: Colour = Colour.RED
    kind: Literal["flat", "round"] = "flat"
    corners: tuple[Point, ...] = ()
    pair: tuple[int, str] = (0, "")
    note: str | float | None = None
    seen: Annotated[int, Mark.NO_KEY] = 0


@dataclass(frozen=True, slots=True)
class Drawing:
    author: str
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    length: Annotated[int, From(str), len] = 0


SHAPE: dict[str, Any] = {
    "width": 3, "place": [1, 2], "colour": "blue", "kind": "round", "corners": [[0, 0.5]],
    "pair": [1, "a"], "note": 4,
}  # fmt: skip


def test_each_type_is_read_in_its_way() -> None:
    drawing = STRICT_JSON.read(Drawing, {"author": "a", "shapes": {"s": SHAPE}, "length": "four"})
    shape = drawing.shapes["s"]
    assert shape == Shape(
        "s", Size(3, 1), Point(1, 2.0), Colour.BLUE, "round", (Point(0, 0.5),), (1, "a"), 4.0
    )
    assert drawing.length == 4


def test_what_is_written_is_read_again() -> None:
    shape = Shape("", Size(3, 4), Point(1, 2.0), Colour.BLUE, "round", (Point(0, 0.5),), (1, "a"))
    written = plain(shape)
    assert "width" in written and "place" in written and "seen" not in written
    assert STRICT_JSON.read(Shape, written, name="") == shape


@each(
    ("change", "says"),
    [
        (lambda d: d.pop("author"), "author is missing"),
        (lambda d: d.update(author=3), "author is 3; expected a text"),
        (lambda d: d.update(authr=3), "the drawing has no key 'authr'; did you mean 'author'?"),
        (lambda d: d.update(authr=d.pop("author")), "has no key 'authr'; did you mean 'author'?"),
        (lambda d: d.update(shapes=[]), "shapes is []; expected an object"),
        (lambda d: d["shapes"].update(t=3), "shapes.t is 3; expected an object"),
        (lambda d: d["shapes"]["s"].update(width=0), "shapes.s.width is 0; expected 1 or more"),
        (lambda d: d["shapes"]["s"].update(width=True), "width is true; expected a whole number"),
        (lambda d: d["shapes"]["s"].update(seen=1), "shapes.s has no key 'seen'; expected width,"),
        (lambda d: d["shapes"]["s"].update(colour="read"), "colour is 'read'; did you mean 'red'?"),
        (lambda d: d["shapes"]["s"].update(kind=1), "kind is 1; expected flat or round"),
        (lambda d: d["shapes"]["s"].update(corners=[[0, 1], [0, "y"]]),
         "shapes.s.corners[1].y is 'y'; expected a number"),
        (lambda d: d["shapes"]["s"].update(corners=[[0]]), "is [0]; expected a list of x, y"),
        (lambda d: d["shapes"]["s"].update(pair=[1]), "pair is [1]; expected a list of 2 values"),
        (lambda d: d["shapes"]["s"].update(note=[]), "note is []; expected a text or a number"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(change: Callable[[dict[str, Any]], object], says: str) -> None:
    document = {"author": "a", "shapes": {"s": {**SHAPE}}}
    change(document)
    with pytest.raises(Misfit) as caught:
        STRICT_JSON.read(Drawing, document)
    sentence = caught.value.say("" if caught.value.keys else "the drawing")
    assert says in sentence


def test_what_a_newer_program_has_written_is_read() -> None:
    assert JSON.read(Size, {"width": 2, "depth": 3}) == Size(2)


POINT = Point(1, 0.5)


@dataclass(frozen=True, slots=True)
class Part:
    size_bytes: Annotated[int, As("bytes")]
    pair: Point = POINT


class Whole:
    @figure
    def double(self) -> Annotated[int, As("twice")]:
        return 2 * sum(part.size_bytes for part in self.parts)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Report(Whole):
    SCHEMA: ClassVar[str] = "test/1"

    parts: tuple[Part, ...]
    first: Annotated[Part, Mark.FLAT]
    last: Annotated[Part | None, Mark.FLAT] = None
    best: Annotated[Part | None, Only("pair.x"), As("best_x")] = None
    sizes: Annotated[tuple[Part, ...], Only("size_bytes")] = ()
    by_colour: Mapping[Colour, int] = field(default_factory=dict)
    left_out: Annotated[tuple[tuple[str, str], ...], Mark.PAIRS] = ()
    remark: Annotated[str, Mark.NULL] = ""
    column: Any = None
    gpu: Annotated[Gpu | None, Mark.NO_KEY] = None
    total: Annotated[int, Mark.UNWRITTEN] = 0

    @property
    def ignored(self) -> int:
        return 1

    @figure
    def more(self) -> Annotated[Mapping[str, object], Mark.FLAT]:
        return {"bytes": 8, "colour": Colour.RED}


def test_a_document_has_the_fields_and_figures_of_a_record() -> None:
    part = Part(4)
    column = np.array([1.0, np.nan])
    pairs = (("a", "b"),)
    report = Report((part,), part, part, part, (part,), {Colour.BLUE: 1}, pairs, column=column)
    assert document_of(report) == {
        "schema": "test/1",
        "parts": [{"bytes": 4, "pair": [1, 0.5]}],
        "bytes": 8,
        "pair": [1, 0.5],
        "best_x": 1,
        "sizes": [4],
        "by_colour": {"blue": 1},
        "left_out": {"a": "b"},
        "remark": None,
        "column": [1.0, None],
        "twice": 8,
        "colour": "red",
    }


def test_what_is_not_there_is_null_or_left_out() -> None:
    document = document_of(Report((), Part(4), remark="one"))
    assert (document["best_x"], document["remark"], document["bytes"]) == (None, "one", 8)
    assert document_of(NoteOf(None)) == {}


@dataclass(frozen=True, slots=True)
class NoteOf:
    part: Annotated[Part | None, Mark.FLAT]


@each("value", [object(), [complex(1)], {"a": {1, 2}}])
def test_what_json_does_not_have_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="cannot be written; expected a record or a plain value"):
        plain(value)
