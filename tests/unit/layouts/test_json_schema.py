import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import NamedTuple

import pytest

from evenkeel.layouts.json_schema import complaint, number, record_from, record_of

SCHEMA = {
    "type": "object",
    "required": ["ranks"],
    "additionalProperties": False,
    "properties": {
        "ranks": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
        "mix": {"anyOf": [{"type": "boolean"}, {"type": "number", "exclusiveMinimum": 1, "maximum": 3}]},
        "home": {"$ref": "#/$defs/home"},
        "speeds": {"type": "object", "additionalProperties": {"type": ["number", "null"]}},
        "kind": {"const": "weight"},
        "one": {"const": 1},
    },
    "$defs": {
        "home": {
            "anyOf": [
                {"type": "object", "required": ["a", "b"], "properties": {"a": {}, "b": {}}},
                {"type": "object", "required": ["c"], "properties": {"c": {"enum": ["x", "y"]}}},
            ]
        }
    },
}


@pytest.mark.parametrize(
    "value",
    [
        {"ranks": [0]},
        {"ranks": [0, 3.0], "mix": 2, "home": {"c": "x"}, "speeds": {"0": 0.5, "1": None}, "kind": "weight"},
        {"ranks": [1], "mix": False, "home": {"a": 1, "b": None}, "one": 1},
    ],
)
def test_what_the_schema_allows_has_no_complaint(value):
    assert complaint(SCHEMA, value) == ""


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], "the file: expected an object, found []"),
        ({"rank": 1}, "the file: missing ranks; unknown rank; known here: home, kind, mix, one, ranks, speeds"),
        ({"ranks": []}, "ranks: expected a list (at least 1 of them), found []"),
        ({"ranks": [0, -1]}, "ranks[1]: expected a whole number (at least 0), found -1"),
        ({"ranks": [True]}, "ranks[0]: expected a whole number (at least 0), found True"),
        ({"ranks": [float("nan")]}, "ranks[0]: expected a whole number (at least 0), found nan"),
        ({"ranks": [0], "mix": 1}, "mix: expected true or false or a number (more than 1, at most 3), found 1"),
        ({"ranks": [0], "home": {"c": "z"}}, "home.c: expected one of x, y, found 'z'"),
        ({"ranks": [0], "home": {"a": 1}}, "home: missing b; known here: a, b"),
        ({"ranks": [0], "home": 3}, "home: expected an object, found 3"),
        ({"ranks": [0], "speeds": {"1": "x"}}, "speeds.1: expected a number or null, found 'x'"),
        ({"ranks": [0], "kind": "w"}, "kind: expected 'weight', found 'w'"),
        ({"ranks": [0], "one": True}, "one: expected 1, found True"),
    ],
)
def test_a_complaint_says_where_it_is_and_what_is_allowed(value, said):
    assert complaint(SCHEMA, value) == said


class Colour(StrEnum):
    RED = "red"


class Span(NamedTuple):
    name: str
    start: int


@dataclass(frozen=True, kw_only=True)
class Inner:
    share: float = 0.5
    limit: float | None = None


@dataclass(frozen=True, kw_only=True)
class Outer:
    count: int
    inner: Inner = Inner()
    colour: Colour = Colour.RED
    spans: tuple[Span, ...] = ()
    ballot: tuple[int, str] = (0, "")
    inners: list[Inner] = field(default_factory=list)


def test_a_record_is_made_of_the_document_that_it_is_written_as():
    whole = Outer(count=3, inner=Inner(limit=1.5), spans=(Span("w", 4),), ballot=(2, "me"), inners=[Inner()])
    assert record_from(Outer, json.loads(json.dumps(asdict(whole)))) == whole
    made = record_from(Outer, {"count": 3.0, "colour": "red"})
    assert made == Outer(count=3)
    assert (repr(made.count), type(made.colour)) == ("3", Colour)


@pytest.mark.parametrize(
    "document", [[], 3, {}, {"count": 1, "other": 2}, {"count": "x"}, {"count": 1, "spans": [[1]]}]
)
def test_what_is_no_record_is_refused(document):
    with pytest.raises((TypeError, ValueError)):
        record_from(Outer, document)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"share": "x"}, "share: expected a number (at least 0, at most 1e+24), found 'x'"),
        ({"limit": []}, "limit: expected a number (at least 0, at most 1e+24) or null, found []"),
        ({"limit": None, "share": 1}, ""),
    ],
)
def test_a_record_has_a_schema(document, said):
    assert complaint(record_of(Inner), document) == said


def test_a_limit_may_be_left_out_of_what_is_allowed():
    below = {**number(), "exclusiveMaximum": 1}
    assert complaint(below, 0.99) == ""
    assert "less than 1" in complaint(below, 1, "beta")
