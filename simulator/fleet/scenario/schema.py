"""The JSON Schema of a scenario; ``evenkeel simulate --schema`` prints it, ``docs/simulator.md`` explains the keys.

Limits are far beyond any fleet: they keep a slip of the pen from asking for a billion devices.
"""

from collections.abc import Sequence
from typing import Any

from evenkeel.layouts.json_schema import above, list_of, number, object_of, whole
from evenkeel.simulator.fleet.faults.faults import Spacing
from evenkeel.simulator.fleet.faults.topology import Scope
from evenkeel.simulator.fleet.scenario.models import MODELS

MOST_DEVICES = 1_000_000
_MOST_HOURS = 1e6


def _whole(least: int = 0, most: int = MOST_DEVICES) -> dict[str, Any]:
    return whole(least, most)


_SHAPE = object_of(
    {name: _whole(1) for name in ("hidden", "heads", "kv_heads", "feed_forward")} | {"num_layers": _whole(1, 10_000)},
    "num_layers",
    "hidden",
    "heads",
    "feed_forward",
)
_JOB = object_of(
    {
        "model": {"anyOf": [{"enum": list(MODELS)}, _SHAPE]},
        **{degree: _whole(1) for degree in ("tensor", "pipeline", "data", "micro_batches")},
        "tokens": number(1e-3, 1e12),
        "mean_length": number(1e-3, 1e12),
        "flops_per_second": number(1),
        "fixed_seconds": number(0, 1e9),
        "transfer_seconds": number(0, 1e9),
        "node_bytes_per_second": above(0),
        "network_bytes_per_second": above(0),
        "noise": number(0, 1),
    },
    "model",
    "tensor",
    "pipeline",
    "data",
    "micro_batches",
)
_SPELL = {"at_hours": number(0, _MOST_HOURS), "hours": above(0, _MOST_HOURS)}
_FAULT = object_of(
    {
        **_SPELL,
        "devices": list_of(_whole(), 1),
        "node": _whole(),
        "rack": _whole(),
        "throughput": number(0, 1),
        "silent": {"type": "boolean"},
    },
    "at_hours",
)
_LINK = object_of(
    {**_SPELL, "devices": {**list_of(_whole(), 2), "maxItems": 2}, "factor": above(1)}, "at_hours", "factor"
)
_SPACING = {"enum": [str(each) for each in Spacing]}
_PROCESS = object_of(
    {
        "every_hours": above(0),
        "scope": {"enum": [str(each) for each in Scope]},
        "throughputs": list_of(number(0, 1), 1),
        "repair_hours": above(0),
        "spacing": _SPACING,
        "repair_spacing": _SPACING,
        "max_count": _whole(),
        "silent": {"type": "boolean"},
    },
    "every_hours",
)
_DETECTOR = {name: number() for name in ("stop_seconds", "silent_seconds", "slow_seconds", "link_seconds")}
_COSTS = {name: number() for name in ("group_seconds", "restart_seconds", "checkpoint_seconds", "replacement_seconds")}


def scenario_schema(strategies: Sequence[str]) -> dict[str, Any]:
    """The schema, draft 2020-12, with the names of the systems that may compete."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "a scenario for evenkeel simulate; docs/simulator.md says what the keys mean",
        **object_of(
            {
                "name": {"type": "string"},
                "seed": _whole(0, 2**63 - 1),
                "hours": above(0, _MOST_HOURS),
                "job": _JOB,
                "fleet": object_of({"spares": _whole(), "devices_per_node": _whole(1), "nodes_per_rack": _whole(1)}),
                "faults": list_of(_FAULT),
                "links": list_of(_LINK),
                "processes": list_of(_PROCESS),
                "detector": object_of(
                    _DETECTOR
                    | {name: number(0, 1) for name in ("slow_miss_probability", "min_slowdown")}
                    | {"estimate_error": number(0, 10)}
                ),
                "costs": object_of(_COSTS | {"bytes_per_second": number(1e-3), "device_bytes": number(1)}),
                "strategies": list_of({"enum": list(strategies)}, 1),
            },
            "hours",
            "job",
        ),
    }
