"""A judge of documents by the part of JSON Schema that our documentation uses; any other keyword is an error."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[3] / "docs"
_TYPES: dict[str, Any] = {
    "object": lambda value: isinstance(value, Mapping),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: isinstance(value, int | float) and not isinstance(value, bool) and value == int(value),
}
_NOTES = {"$schema", "$defs", "description", "default", "title"}


def schema_of(page: str, part: int = 0) -> dict[str, Any]:
    """A schema of a page of the documentation."""
    blocks = [block.split("```")[0] for block in (DOCS / page).read_text(encoding="utf-8").split("```json\n")[1:]]
    found: dict[str, Any] = [json.loads(block) for block in blocks if "$schema" in block][part]
    return found


def accepts(schema: Mapping[str, Any], value: object, root: Mapping[str, Any] | None = None) -> bool:
    """Whether a document is one of the schema's."""
    root = schema if root is None else root
    return all(_holds(schema, key, wanted, value, root) for key, wanted in schema.items())


def _holds(schema: Mapping[str, Any], key: str, wanted: Any, value: object, root: Mapping[str, Any]) -> bool:
    is_object, is_number = _TYPES["object"](value), _TYPES["number"](value)
    if key in _NOTES:
        return True
    if key == "$ref":
        return accepts(root["$defs"][wanted.removeprefix("#/$defs/")], value, root)
    if key == "type":
        return any(_TYPES[kind](value) for kind in ([wanted] if isinstance(wanted, str) else wanted))
    if key == "anyOf":
        return any(accepts(each, value, root) for each in wanted)
    if key == "enum":
        return value in wanted
    if key == "const":
        return bool(value == wanted) and isinstance(value, bool) == isinstance(wanted, bool)
    if key == "required":
        return not is_object or all(name in value for name in wanted)  # type: ignore[operator]
    if key == "properties":
        return not is_object or all(accepts(each, value[name], root) for name, each in wanted.items() if name in value)  # type: ignore[index, operator]
    if key == "additionalProperties":
        others = [each for name, each in value.items() if name not in schema.get("properties", {})] if is_object else []  # type: ignore[attr-defined]
        return all(wanted if isinstance(wanted, bool) else accepts(wanted, each, root) for each in others)
    if key == "items":
        return not isinstance(value, list) or all(accepts(wanted, each, root) for each in value)
    if key in ("minItems", "maxItems"):
        return not isinstance(value, Sequence) or (len(value) >= wanted if key == "minItems" else len(value) <= wanted)
    bounds = {"minimum": float.__ge__, "exclusiveMinimum": float.__gt__, "maximum": float.__le__}
    return not is_number or bounds[key](float(value), float(wanted))  # type: ignore[arg-type]
