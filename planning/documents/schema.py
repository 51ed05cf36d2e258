"""The JSON Schema of what ``evenkeel plan`` reads; ``evenkeel plan --schema`` prints it.

Limits are far beyond any job: they keep a slip of the pen from asking for a billion ranks.
"""

from typing import Any

from evenkeel.layouts.json_schema import above, list_of, number, object_of, whole
from evenkeel.layouts.programs.orders import LETTERS
from evenkeel.layouts.programs.schedules import SCHEDULES

MOST_RANKS = 1_000_000
MOST_BLOCKS = 10_000
_MOST_MICRO_BATCHES = 1_000_000


_RANK = whole(0, 2**31 - 1)
_SCHEDULE = {"enum": sorted(SCHEDULES)}
_ALLOWED = {
    "schedule": _SCHEDULE,
    "schedules": {"anyOf": [{"type": "boolean"}, list_of(_SCHEDULE)]},
    "routable": {"type": "boolean"},
    "interleavable": {"type": "boolean"},
    "whole": {"type": "boolean"},
}
_BLOCK = object_of(
    {
        "count": whole(0, MOST_BLOCKS),
        "forward_flops_per_token": number(),
        "forward_flops_per_squared_length": number(),
        "backward_multiple": number(0, 1000),
        "parameter_bytes": whole(),
        "optimizer_bytes": whole(),
        "activation_bytes": whole(),
        "max_width": whole(1, MOST_RANKS),
    },
    "forward_flops_per_token",
    "forward_flops_per_squared_length",
)
_DEGREES = object_of(
    {
        "tensor": whole(1, MOST_RANKS),
        "pipeline": whole(1, MOST_BLOCKS),
        "data": whole(1, MOST_RANKS),
        "num_micro_batches": whole(1, _MOST_MICRO_BATCHES),
        "num_blocks": whole(1, MOST_BLOCKS),
        "standbys": whole(0, MOST_RANKS),
        "mix": {"anyOf": [{"type": "boolean"}, number(1, 1000)]},
        **_ALLOWED,
    },
    "tensor",
    "pipeline",
    "data",
    "num_micro_batches",
)
_STAGE = object_of(
    {
        "first_block": whole(0, MOST_BLOCKS),
        "stop_block": whole(1, MOST_BLOCKS),
        "ranks": list_of(_RANK, 1),
        "shares": list_of(whole(1, MOST_RANKS), 1),
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
    "items": {"anyOf": [{"enum": list(LETTERS)}, whole(0, _MOST_MICRO_BATCHES)]},
}
_REPLICA = object_of(
    {
        "num_micro_batches": whole(0, _MOST_MICRO_BATCHES),
        "stages": list_of(_STAGE, 1),
        "orders": list_of(list_of(_TURN)),
    },
    "num_micro_batches",
    "stages",
)
_MIX = object_of(
    {
        "counts": list_of(whole(1), 1),
        "weights": list_of(whole(1), 1),
        "token_cost": number(),
        "square_cost": number(),
        "fill": whole(),
        "max_scale": number(1, 1000),
    },
    "counts",
    "weights",
    "token_cost",
    "square_cost",
    "fill",
    "max_scale",
)
_ROUTE = {name: whole(0, _MOST_MICRO_BATCHES) for name in ("micro_batch", "stage", "replica")}
_WHOLE_LAYOUT = object_of(
    {
        "num_blocks": whole(1, MOST_BLOCKS),
        "replicas": list_of(_REPLICA, 1),
        "standbys": list_of(_RANK),
        "mix": {"anyOf": [{"type": "null"}, _MIX]},
        "routes": list_of(object_of(_ROUTE, *_ROUTE)),
        **_ALLOWED,
        "schedules": list_of(_SCHEDULE),
    },
    "num_blocks",
    "replicas",
)
_ITERATION = object_of(
    {"wall_seconds": above(), "tokens": list_of(whole()), "sums_of_squares": list_of(whole())},
    "wall_seconds",
    "tokens",
    "sums_of_squares",
)
_LINK = object_of({"ranks": {**list_of(_RANK, 1), "maxItems": 2}, "factor": number(1)}, "ranks", "factor")
_WORKLOAD = object_of(
    {
        "seconds_per_flop": number(1e-24, 1e6),
        "tokens": number(1e-3, 1e12),
        "sum_of_squares": number(),
        "fixed_seconds": number(),
        "transfer_seconds": number(),
        "transfers_in_line": number(),
        "exchange_seconds": number(),
        "gradient_seconds": number(),
        "recent": list_of(_ITERATION),
        "measured": {"type": "boolean"},
    },
    "seconds_per_flop",
    "tokens",
    "sum_of_squares",
)

STATE_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "a state for evenkeel plan; docs/planning.md says what the entries mean",
    **object_of(
        {
            "model": object_of({"blocks": list_of(_BLOCK, 1), "activation_bytes_per_token": whole()}, "blocks"),
            "layout": {"$ref": "#/$defs/layout"},
            "home": {"$ref": "#/$defs/layout"},
            "throughputs": {"type": "object", "additionalProperties": number(0, 16)},
            "vacant": list_of(_RANK),
            "domains": {"type": "object", "additionalProperties": list_of(_RANK)},
            "links": list_of(_LINK),
            "workload": _WORKLOAD,
            "correction": number(1e-6, 1e6),
            "transition": object_of({"group_seconds": number(), "bytes_per_second": number(1e-3)}),
            "device_bytes": above(),
            "rule": object_of({"horizon_seconds": number(), "min_gain": number(0, 1), "safety": number()}),
            "flips": whole(0, 1_000_000),
        },
        "model",
        "layout",
    ),
    "$defs": {"layout": {"anyOf": [_DEGREES, _WHOLE_LAYOUT]}},
}
"""Draft 2020-12."""
