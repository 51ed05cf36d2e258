"""Cases as JSON documents, in the form of ``docs/pipelines.md``.

What a case does not know (sources, published figures) it passes over, in the case itself and in its layers; in the
sections of rules every key must be known.
"""

from collections.abc import Mapping
from typing import Any

from evenkeel.layouts.json_schema import complaint, list_of, number, object_of, record_of, whole
from evenkeel.pipelines.case import Backward, Case, Layer, PlacementRule, RoleCost, StageBias


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "type": [schema["type"], "null"]}


_LAYER = {**record_of(Layer), "additionalProperties": True}
_ROLE = _or_null(record_of(RoleCost))
_RULES = {
    "stages": _or_null(whole(1)),
    "placement": {"enum": list(PlacementRule)},
    "fifo": {"type": "boolean"},
    "min_layers_per_stage": {"const": 1},
}
_CASE: dict[str, Any] = {
    "type": "object",
    "required": ["devices", "micro_batches", "layers"],
    "properties": {
        "name": {"type": "string"},
        "devices": whole(1),
        "micro_batches": whole(1),
        "layers": list_of(_LAYER, 1),
        "backward": {"enum": list(Backward)},
        "communication": number(),
        "device_speeds": _or_null(list_of(number(), 1)),
        "memory": _or_null(object_of({"limit": _or_null(number()), "release": {"const": "weight"}, "unit": {}})),
        "constraints": _or_null(object_of(_RULES)),
        "stage_bias": _or_null(record_of(StageBias, first=_ROLE, middle=_ROLE, last=_ROLE)),
    },
}


def case_from_json(document: Mapping[str, Any]) -> Case:
    """Reads a case.

    Raises:
        ValueError: Something is missing or impossible; the message names the key.
    """
    if flaw := complaint(_CASE, document):
        raise ValueError(flaw)
    memory, rules = document.get("memory") or {}, document.get("constraints") or {}
    stages, roles = rules.get("stages"), document.get("stage_bias")
    return Case(
        name=document.get("name", "case"),
        devices=int(document["devices"]),
        micro_batches=int(document["micro_batches"]),
        layers=tuple(
            [
                Layer(**{name: layer[name] for name in _LAYER["properties"] if name in layer})
                for layer in document["layers"]
            ]
        ),
        backward=Backward(document.get("backward", Backward.SPLIT)),
        communication=document.get("communication", 0),
        memory_limit=memory.get("limit"),
        speeds=tuple(document.get("device_speeds") or ()),
        stages=None if stages is None else int(stages),
        placement=PlacementRule(rules.get("placement", PlacementRule.ANY)),
        fifo=rules.get("fifo", False),
        stage_bias=StageBias(**{role: RoleCost(**(cost or {})) for role, cost in roles.items()}) if roles else None,
    )


def passed_over(document: Mapping[str, Any]) -> list[str]:
    """Keys of a case and of its layers that mean nothing here: notes of whoever wrote it, or misspelt ones."""
    layers = {key for layer in document["layers"] for key in layer} - set(_LAYER["properties"])
    return sorted(set(document) - set(_CASE["properties"])) + sorted(f"layers[].{key}" for key in layers)
