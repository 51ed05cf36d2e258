"""The JSON Schema of what ``evenkeel plan`` reads; ``evenkeel plan --schema`` prints it.

Limits are far beyond any job: they keep a slip of the pen from asking for a billion ranks.
"""

from typing import Any

from evenkeel.layouts.json_schema import above, list_of, number, object_of, record_of, whole
from evenkeel.layouts.layout import Layout, Replica, Stage
from evenkeel.layouts.model import BlockCost
from evenkeel.layouts.programs.orders import LETTERS
from evenkeel.layouts.programs.routes import Route
from evenkeel.layouts.programs.schedules import SCHEDULES
from evenkeel.layouts.sizes.mix import Mix
from evenkeel.planning.costs.cost_model import Workload
from evenkeel.planning.costs.links import SlowLink
from evenkeel.planning.costs.measured.recent import RecentIteration
from evenkeel.planning.costs.price import TransitionCosts

MOST_RANKS = 1_000_000
MOST_BLOCKS = 10_000
_MOST_MICRO_BATCHES = 1_000_000

_BOOLEAN = {"type": "boolean"}
_RANK = whole(0, 2**31 - 1)
_SCHEDULE = {"enum": sorted(SCHEDULES)}
_COSTS = record_of(BlockCost, backward_multiple=number(0, 1000), max_width=whole(1, MOST_RANKS))
_BLOCK = object_of({"count": whole(0, MOST_BLOCKS), **_COSTS["properties"]}, *_COSTS["required"])
_DEGREES = object_of(
    {
        "tensor": whole(1, MOST_RANKS),
        "pipeline": whole(1, MOST_BLOCKS),
        "data": whole(1, MOST_RANKS),
        "num_micro_batches": whole(1, _MOST_MICRO_BATCHES),
        "num_blocks": whole(1, MOST_BLOCKS),
        "standbys": whole(0, MOST_RANKS),
        "mix": {"anyOf": [_BOOLEAN, number(1, 1000)]},
        "schedule": _SCHEDULE,
        "schedules": {"anyOf": [_BOOLEAN, list_of(_SCHEDULE)]},
        **dict.fromkeys(("routable", "interleavable", "whole"), _BOOLEAN),
    },
    "tensor",
    "pipeline",
    "data",
    "num_micro_batches",
)
_STAGE = record_of(
    Stage,
    first_block=whole(0, MOST_BLOCKS),
    stop_block=whole(1, MOST_BLOCKS),
    ranks=list_of(_RANK, 1),
    shares=list_of(whole(1, MOST_RANKS), 1),
)
_TURN = {
    "type": "array",
    "minItems": 3,
    "maxItems": 3,
    "description": "pass, place of the micro-batch, stage",
    "items": {"anyOf": [{"enum": list(LETTERS)}, whole(0, _MOST_MICRO_BATCHES)]},
}
_REPLICA = record_of(
    Replica,
    num_micro_batches=whole(0, _MOST_MICRO_BATCHES),
    stages=list_of(_STAGE, 1),
    orders=list_of(list_of(_TURN)),
)
_MIX = record_of(Mix, counts=list_of(whole(1), 1), weights=list_of(whole(1), 1), max_scale=number(1, 1000))
_PLACE = whole(0, _MOST_MICRO_BATCHES)
_WHOLE_LAYOUT = record_of(
    Layout,
    num_blocks=whole(1, MOST_BLOCKS),
    replicas=list_of(_REPLICA, 1),
    standbys=list_of(_RANK),
    schedule=_SCHEDULE,
    mix={"anyOf": [{"type": "null"}, _MIX]},
    schedules=list_of(_SCHEDULE),
    routes=list_of(record_of(Route, micro_batch=_PLACE, stage=_PLACE, replica=_PLACE)),
)
_LINK = record_of(SlowLink, ranks={**list_of(_RANK, 1), "maxItems": 2}, factor=number(1))
_WORKLOAD = record_of(
    Workload,
    seconds_per_flop=number(1e-24, 1e6),
    tokens=number(1e-3, 1e12),
    recent=list_of(record_of(RecentIteration, wall_seconds=above())),
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
            "transition": record_of(TransitionCosts, bytes_per_second=number(1e-3)),
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
