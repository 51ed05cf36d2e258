"""The JSON Schema of a scenario; ``evenkeel simulate --schema`` prints it, ``docs/simulator.md`` explains the keys.

Limits are far beyond any fleet: they keep a slip of the pen from asking for a billion devices.
"""

from collections.abc import Sequence
from typing import Any

from evenkeel.simulator.fleet.faults import Spacing
from evenkeel.simulator.fleet.models import MODELS
from evenkeel.simulator.fleet.topology import Scope

MOST_DEVICES = 1_000_000
_LARGEST = 1e24
_MOST_HOURS = 1e6


def _number(least: float = 0, most: float = _LARGEST) -> dict[str, Any]:
    return {"type": "number", "minimum": least, "maximum": most}


def _above(limit: float = 0, most: float = _LARGEST) -> dict[str, Any]:
    return {"type": "number", "exclusiveMinimum": limit, "maximum": most}


def _whole(least: int = 0, most: int = MOST_DEVICES) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties, "additionalProperties": False}


def _list(items: dict[str, Any], least: int = 0) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least}


_SHAPE = _object(
    {name: _whole(1) for name in ("hidden", "heads", "kv_heads", "feed_forward")} | {"num_layers": _whole(1, 10_000)},
    "num_layers",
    "hidden",
    "heads",
    "feed_forward",
)
_JOB = _object(
    {
        "model": {"anyOf": [{"enum": list(MODELS)}, _SHAPE]},
        **{degree: _whole(1) for degree in ("tensor", "pipeline", "data", "micro_batches")},
        "tokens": _number(1e-3, 1e12),
        "mean_length": _number(1e-3, 1e12),
        "flops_per_second": _number(1),
        "fixed_seconds": _number(0, 1e9),
        "transfer_seconds": _number(0, 1e9),
        "node_bytes_per_second": _above(0),
        "network_bytes_per_second": _above(0),
        "noise": _number(0, 1),
    },
    "model",
    "tensor",
    "pipeline",
    "data",
    "micro_batches",
)
_SPELL = {"at_hours": _number(0, _MOST_HOURS), "hours": _above(0, _MOST_HOURS)}
_FAULT = _object(
    {
        **_SPELL,
        "devices": _list(_whole(), 1),
        "node": _whole(),
        "rack": _whole(),
        "throughput": _number(0, 1),
        "silent": {"type": "boolean"},
    },
    "at_hours",
)
_LINK = _object({**_SPELL, "devices": {**_list(_whole(), 2), "maxItems": 2}, "factor": _above(1)}, "at_hours", "factor")
_SPACING = {"enum": [str(each) for each in Spacing]}
_PROCESS = _object(
    {
        "every_hours": _above(0),
        "scope": {"enum": [str(each) for each in Scope]},
        "throughputs": _list(_number(0, 1), 1),
        "repair_hours": _above(0),
        "spacing": _SPACING,
        "repair_spacing": _SPACING,
        "max_count": _whole(),
        "silent": {"type": "boolean"},
    },
    "every_hours",
)
_DETECTOR = {name: _number() for name in ("stop_seconds", "silent_seconds", "slow_seconds", "link_seconds")}
_COSTS = {name: _number() for name in ("group_seconds", "restart_seconds", "checkpoint_seconds", "replacement_seconds")}


def scenario_schema(strategies: Sequence[str]) -> dict[str, Any]:
    """The schema, draft 2020-12, with the names of the systems that may compete."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "a scenario for evenkeel simulate; docs/simulator.md says what the keys mean",
        **_object(
            {
                "name": {"type": "string"},
                "seed": _whole(0, 2**63 - 1),
                "hours": _above(0, _MOST_HOURS),
                "job": _JOB,
                "fleet": _object({"spares": _whole(), "devices_per_node": _whole(1), "nodes_per_rack": _whole(1)}),
                "faults": _list(_FAULT),
                "links": _list(_LINK),
                "processes": _list(_PROCESS),
                "detector": _object(
                    _DETECTOR
                    | {name: _number(0, 1) for name in ("slow_miss_probability", "min_slowdown")}
                    | {"estimate_error": _number(0, 10)}
                ),
                "costs": _object(_COSTS | {"bytes_per_second": _number(1e-3), "device_bytes": _number(1)}),
                "strategies": _list({"enum": list(strategies)}, 1),
            },
            "hours",
            "job",
        ),
    }
