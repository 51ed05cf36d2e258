"""The JSON Schema of what ``evenkeel plan`` reads; ``evenkeel plan --schema`` prints it.

Limits are far beyond any job: they keep a slip of the pen from asking for a billion ranks.
"""

from typing import Any

from evenkeel.layouts.orders import LETTERS
from evenkeel.layouts.schedules import SCHEDULES

MOST_RANKS = 1_000_000
MOST_BLOCKS = 10_000
_MOST_MICRO_BATCHES = 1_000_000
_LARGEST = 1e24


def _number(least: float = 0, most: float = _LARGEST) -> dict[str, Any]:
    return {"type": "number", "minimum": least, "maximum": most}


def _positive(most: float = _LARGEST) -> dict[str, Any]:
    return {"type": "number", "exclusiveMinimum": 0, "maximum": most}


def _whole(least: int = 0, most: float = _LARGEST) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties, "additionalProperties": False}


def _list(items: dict[str, Any], least: int = 0) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least}


_RANK = _whole(0, 2**31 - 1)
_SCHEDULE = {"enum": sorted(SCHEDULES)}
_ALLOWED = {
    "schedule": _SCHEDULE,
    "schedules": {"anyOf": [{"type": "boolean"}, _list(_SCHEDULE)]},
    "routable": {"type": "boolean"},
    "interleavable": {"type": "boolean"},
    "whole": {"type": "boolean"},
}
_BLOCK = _object(
    {
        "count": _whole(0, MOST_BLOCKS),
        "forward_flops_per_token": _number(),
        "forward_flops_per_squared_length": _number(),
        "backward_multiple": _number(0, 1000),
        "parameter_bytes": _whole(),
        "optimizer_bytes": _whole(),
        "activation_bytes": _whole(),
        "max_width": _whole(1, MOST_RANKS),
    },
    "forward_flops_per_token",
    "forward_flops_per_squared_length",
)
_DEGREES = _object(
    {
        "tensor": _whole(1, MOST_RANKS),
        "pipeline": _whole(1, MOST_BLOCKS),
        "data": _whole(1, MOST_RANKS),
        "num_micro_batches": _whole(1, _MOST_MICRO_BATCHES),
        "num_blocks": _whole(1, MOST_BLOCKS),
        "standbys": _whole(0, MOST_RANKS),
        "mix": {"anyOf": [{"type": "boolean"}, _number(1, 1000)]},
        **_ALLOWED,
    },
    "tensor",
    "pipeline",
    "data",
    "num_micro_batches",
)
_STAGE = _object(
    {
        "first_block": _whole(0, MOST_BLOCKS),
        "stop_block": _whole(1, MOST_BLOCKS),
        "ranks": _list(_RANK, 1),
        "shares": _list(_whole(1, MOST_RANKS), 1),
    },
    "first_block",
    "stop_block",
    "ranks",
    "shares",
)
_TURN = {
    "type": "array",
    "minItems": 3,
    "maxItems": 3,
    "description": "pass, place of the micro-batch, stage",
    "items": {"anyOf": [{"enum": list(LETTERS)}, _whole(0, _MOST_MICRO_BATCHES)]},
}
_REPLICA = _object(
    {
        "num_micro_batches": _whole(0, _MOST_MICRO_BATCHES),
        "stages": _list(_STAGE, 1),
        "orders": _list(_list(_TURN)),
    },
    "num_micro_batches",
    "stages",
)
_MIX = _object(
    {
        "counts": _list(_whole(1), 1),
        "weights": _list(_whole(1), 1),
        "token_cost": _number(),
        "square_cost": _number(),
        "fill": _whole(),
        "max_scale": _number(1, 1000),
    },
    "counts",
    "weights",
    "token_cost",
    "square_cost",
    "fill",
    "max_scale",
)
_ROUTE = {name: _whole(0, _MOST_MICRO_BATCHES) for name in ("micro_batch", "stage", "replica")}
_WHOLE_LAYOUT = _object(
    {
        "num_blocks": _whole(1, MOST_BLOCKS),
        "replicas": _list(_REPLICA, 1),
        "standbys": _list(_RANK),
        "mix": {"anyOf": [{"type": "null"}, _MIX]},
        "routes": _list(_object(_ROUTE, *_ROUTE)),
        **_ALLOWED,
        "schedules": _list(_SCHEDULE),
    },
    "num_blocks",
    "replicas",
)
_ITERATION = _object(
    {"wall_seconds": _positive(), "tokens": _list(_whole()), "sums_of_squares": _list(_whole())},
    "wall_seconds",
    "tokens",
    "sums_of_squares",
)
_LINK = _object({"ranks": {**_list(_RANK, 1), "maxItems": 2}, "factor": _number(1)}, "ranks", "factor")
_WORKLOAD = _object(
    {
        "seconds_per_flop": _number(1e-24, 1e6),
        "tokens": _number(1e-3, 1e12),
        "sum_of_squares": _number(),
        "fixed_seconds": _number(),
        "transfer_seconds": _number(),
        "transfers_in_line": _number(),
        "exchange_seconds": _number(),
        "gradient_seconds": _number(),
        "recent": _list(_ITERATION),
        "measured": {"type": "boolean"},
    },
    "seconds_per_flop",
    "tokens",
    "sum_of_squares",
)

STATE_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "a state for evenkeel plan; docs/planning.md says what the entries mean",
    **_object(
        {
            "model": _object({"blocks": _list(_BLOCK, 1), "activation_bytes_per_token": _whole()}, "blocks"),
            "layout": {"$ref": "#/$defs/layout"},
            "home": {"$ref": "#/$defs/layout"},
            "throughputs": {"type": "object", "additionalProperties": _number(0, 16)},
            "vacant": _list(_RANK),
            "domains": {"type": "object", "additionalProperties": _list(_RANK)},
            "links": _list(_LINK),
            "workload": _WORKLOAD,
            "correction": _number(1e-6, 1e6),
            "transition": _object({"group_seconds": _number(), "bytes_per_second": _number(1e-3)}),
            "device_bytes": _positive(),
            "rule": _object({"horizon_seconds": _number(), "min_gain": _number(0, 1), "safety": _number()}),
            "flips": _whole(0, 1_000_000),
        },
        "model",
        "layout",
    ),
    "$defs": {"layout": {"anyOf": [_DEGREES, _WHOLE_LAYOUT]}},
}
"""Draft 2020-12."""
