"""Holds a document against a JSON Schema and says what is wrong first, where, and what is allowed there.

Knows the part of the standard that our own schemas use: ``type``, ``enum``, ``const``, ``required``, ``properties``,
``additionalProperties``, ``items``, ``minItems``, ``maxItems``, ``minimum``, ``exclusiveMinimum``, ``maximum``,
``exclusiveMaximum``, ``anyOf`` and ``$ref`` into ``$defs``. A number is finite, as in JSON itself. Dataclasses have
schemas, and are made of documents that these allow.
"""

import math
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import EnumType, StrEnum
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

Schema = Mapping[str, Any]

R = TypeVar("R")

_IS: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, Mapping) and all(isinstance(key, str) for key in value),
    "array": lambda value: isinstance(value, list | tuple),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "number": lambda value: (
        isinstance(value, int | float) and not isinstance(value, bool) and -math.inf < value < math.inf
    ),
    "integer": lambda value: _IS["number"](value) and value == int(value),
    "null": lambda value: value is None,
}
_CALLED = {
    "object": "an object",
    "array": "a list",
    "string": "a text",
    "boolean": "true or false",
    "number": "a number",
    "integer": "a whole number",
    "null": "null",
}
_SHORT = reprlib.Repr()  # YAML may hold a list of lists that is endless when it is written out
_SHORT.maxstring = _SHORT.maxother = 80
_LARGEST = 1e24
_LIMITS = {
    "minimum": "at least",
    "exclusiveMinimum": "more than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
}


def complaint(schema: Schema, value: object, path: str = "", *, root: Schema | None = None) -> str:
    """What is wrong with a document; empty when it is one of the schema's.

    Args:
        schema: The schema.
        value: The document.
        path: Where the value is, for the words.
        root: The schema that holds ``$defs``; ``schema`` itself if it is None.
    """
    root = schema if root is None else root
    schema = _followed(schema, root)
    if "anyOf" in schema:
        return _of_any(schema, value, path, root)
    if not _fits(schema, value):
        return f"{path or 'the file'}: expected {_expected(schema, root)}, found {_shown(value)}"
    if isinstance(value, Mapping):
        return _of_object(schema, value, path, root)
    if isinstance(value, list | tuple) and "items" in schema:
        each = (complaint(schema["items"], item, f"{path}[{place}]", root=root) for place, item in enumerate(value))
        return next(filter(None, each), "")
    return ""


def _followed(schema: Schema, root: Schema) -> Schema:
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    return schema


def _kinds(schema: Schema) -> list[str]:
    """Types that are allowed; none where any is."""
    kinds = schema.get("type", [])
    return [kinds] if isinstance(kinds, str) else list(kinds)


def _choices(schema: Schema) -> list[Any]:
    return [schema["const"]] if "const" in schema else list(schema.get("enum", ()))


def _fits(schema: Schema, value: Any) -> bool:
    if choices := _choices(schema):
        return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in choices)
    kinds = _kinds(schema)
    if kinds and not any(_IS[kind](value) for kind in kinds):
        return False
    if _IS["array"](value):
        return bool(schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", math.inf))
    if not _IS["number"](value):
        return True
    return bool(
        schema.get("minimum", -math.inf) <= value <= schema.get("maximum", math.inf)
        and schema.get("exclusiveMinimum", -math.inf) < value < schema.get("exclusiveMaximum", math.inf)
    )


def _of_object(schema: Schema, value: Any, path: str, root: Schema) -> str:
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    missing = [name for name in schema.get("required", ()) if name not in value]
    unknown = [] if others is not False else sorted(set(value) - set(known))
    if missing or unknown:
        said = [f"missing {', '.join(missing)}"] * bool(missing) + [f"unknown {', '.join(unknown)}"] * bool(unknown)
        return f"{path or 'the file'}: {'; '.join(said)}; known here: {', '.join(sorted(known))}"
    for name, each in value.items():
        below = known.get(name, others)
        if isinstance(below, bool):
            continue
        if said_below := complaint(below, each, f"{path}.{name}" if path else name, root=root):
            return said_below
    return ""


def _of_any(schema: Schema, value: object, path: str, root: Schema) -> str:
    """The complaint of the form that the value seems to be meant as."""
    forms = [_followed(form, root) for form in schema["anyOf"]]
    complaints = [complaint(form, value, path, root=root) for form in forms]
    if not all(complaints):
        return ""
    alike = [
        (len(set(value) - set(form.get("properties", {}))), said) if isinstance(value, Mapping) else (0, said)
        for form, said in zip(forms, complaints, strict=True)
        if any(kind in ("object", "array") and _IS[kind](value) for kind in _kinds(form))
    ]
    if alike:
        return min(alike, key=lambda pair: pair[0])[1]
    return f"{path or 'the file'}: expected {_expected(schema, root)}, found {_shown(value)}"


def _expected(schema: Schema, root: Schema) -> str:
    schema = _followed(schema, root)
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_expected(form, root) for form in schema["anyOf"]))
    if choices := _choices(schema):
        return f"one of {', '.join(map(str, choices))}" if len(choices) > 1 else repr(choices[0])
    words = [" or ".join(_CALLED[kind] for kind in _kinds(schema))]
    limits = [f"{said} {schema[key]:.7g}" for key, said in _LIMITS.items() if key in schema]
    if schema.get("minItems"):
        limits.append(f"at least {schema['minItems']} of them")
    if "maxItems" in schema:
        limits.append(f"at most {schema['maxItems']} of them")
    if limits:
        words.append(f"({', '.join(limits)})")
    return " ".join(words)


def _shown(value: object) -> str:
    return _SHORT.repr(value)


TEXT: dict[str, Any] = {"type": "string"}
OBJECT: dict[str, Any] = {"type": "object"}
BOOLEAN: dict[str, Any] = {"type": "boolean"}


def number(least: float = 0, most: float = _LARGEST) -> dict[str, Any]:
    """The schema of a number."""
    return {"type": "number", "minimum": least, "maximum": most}


def above(limit: float = 0, most: float = _LARGEST) -> dict[str, Any]:
    """The schema of a number that is more than a limit."""
    return {"type": "number", "exclusiveMinimum": limit, "maximum": most}


def whole(least: int = 0, most: float = _LARGEST) -> dict[str, Any]:
    """The schema of a whole number."""
    return {"type": "integer", "minimum": least, "maximum": most}


def object_of(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    """The schema of an object that has these properties and no others."""
    return {"type": "object", "required": list(required), "properties": properties, "additionalProperties": False}


def list_of(items: dict[str, Any], least: int = 0) -> dict[str, Any]:
    """The schema of a list."""
    return {"type": "array", "items": items, "minItems": least}


def record_of(kind: Any, **given: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object with what a dataclass is made of; what has a default there may be left out.

    Args:
        kind: The dataclass.
        given: Schemas of fields that are not just any number of 0 or more, text, choice, record, or list of these.
    """
    hints, own = get_type_hints(kind), [each for each in fields(kind) if each.init]
    needed = [each.name for each in own if each.default is MISSING and each.default_factory is MISSING]
    return object_of({each.name: given.get(each.name) or _of_type(hints[each.name]) for each in own}, *needed)


def _of_type(hint: Any) -> dict[str, Any]:
    if is_dataclass(hint):
        return record_of(hint)
    if isinstance(hint, UnionType):
        return {"anyOf": [_of_type(each) for each in get_args(hint)]}
    if items := get_args(hint):
        return list_of(_of_type(items[0]))
    if issubclass(hint, StrEnum):
        return {"enum": list(hint)}
    return {float: number(), int: whole(), bool: BOOLEAN, str: TEXT, NoneType: {"type": "null"}}[hint]


def record_from(kind: type[R], plain: Mapping[str, Any]) -> R:
    """A dataclass of what a JSON document has of it: objects become records, lists tuples, where fields are such.

    Args:
        kind: The dataclass.
        plain: What is said of its fields; what is no JSON in there stays as it is.

    Raises:
        TypeError, ValueError: It is none of that dataclass; a schema says what is wrong, and where.
    """
    hints = _hints(cast(Any, kind))
    return kind(**{name: _value(hints.get(name), each) for name, each in dict(plain).items()})


def _value(hint: Any, plain: Any) -> Any:
    if is_dataclass(hint) and isinstance(plain, Mapping):
        return record_from(cast(type, hint), plain)
    if get_origin(hint) in (list, tuple):
        items = get_args(hint)
        kinds = items if get_origin(hint) is tuple and items[-1] is not ... else items[:1] * len(plain)
        return get_origin(hint)(_value(*each) for each in zip(kinds, plain, strict=True))
    if isinstance(hint, type) and issubclass(hint, tuple):  # one with names
        return hint(*(_value(*each) for each in zip(_hints(hint).values(), plain, strict=True)))
    return hint(plain) if hint is int or isinstance(hint, EnumType) else plain


@lru_cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)
