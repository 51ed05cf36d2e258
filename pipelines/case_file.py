"""Cases as JSON documents, in the form of ``docs/pipelines.md``.

What a case does not know (sources, published figures) it passes over, in the case itself and in its layers; in the
sections of rules every key must be known.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

from evenkeel.pipelines.case import Backward, Case, Layer, PlacementRule, RoleCost, StageBias


def case_from_json(document: Mapping[str, Any]) -> Case:
    """Reads a case.

    Raises:
        ValueError: Something is missing or impossible; the message names the key.
    """
    if not isinstance(document, Mapping):
        raise ValueError("a case is a JSON object; see docs/pipelines.md")
    memory, rules = _section(document, "memory", _MEMORY), _section(document, "constraints", _RULES)
    layers = document.get("layers")
    if not isinstance(layers, list | tuple):
        raise ValueError(f"'layers' must be a list of objects, one a layer, not {layers!r:.80}")
    if _number(rules, "min_layers_per_stage", 1) != 1:
        raise ValueError("constraints.min_layers_per_stage other than 1 is not supported")
    if memory.get("release", "weight") != "weight":
        raise ValueError("memory.release must be 'weight': activations are held until B and W have ended")
    name, fifo = document.get("name", "case"), rules.get("fifo", False)
    if not isinstance(name, str) or not isinstance(fifo, bool):
        raise ValueError(
            f"'name' must be a text and 'constraints.fifo' true or false, not {name!r:.80} and {fifo!r:.80}"
        )
    return Case(
        name=name,
        devices=_integer(document, "devices"),
        micro_batches=_integer(document, "micro_batches"),
        layers=tuple(_layer(index, layer) for index, layer in enumerate(layers)),
        backward=_choice(document, "backward", Backward.SPLIT),
        communication=_number(document, "communication", 0),
        memory_limit=None if memory.get("limit") is None else _number(memory, "limit"),
        speeds=_speeds(document),
        stages=None if rules.get("stages") is None else _integer(rules, "stages"),
        placement=_choice(rules, "placement", PlacementRule.ANY),
        fifo=fifo,
        stage_bias=_bias(_section(document, "stage_bias", _ROLES)),
    )


def passed_over(document: Mapping[str, Any]) -> list[str]:
    """Keys of a case and of its layers that mean nothing here: notes of whoever wrote it, or misspelt ones."""
    layers = {key for layer in document["layers"] for key in layer} - _LAYER
    return sorted(set(document) - _CASE) + sorted(f"layers[].{key}" for key in layers)


_CASE = frozenset(
    {
        "name",
        "devices",
        "micro_batches",
        "layers",
        "backward",
        "communication",
        "device_speeds",
        "memory",
        "constraints",
        "stage_bias",
    }
)
_LAYER = frozenset({"forward", "backward_input", "backward_weight", "activation"})
_MEMORY = frozenset({"limit", "release", "unit"})
_RULES = frozenset({"stages", "placement", "fifo", "min_layers_per_stage"})
_ROLES = frozenset({"first", "middle", "last"})
_LARGEST = 1e100
_Choice = TypeVar("_Choice", bound=StrEnum)


def _section(document: Mapping[str, Any], key: str, known: frozenset[str]) -> Mapping[str, Any]:
    section = document.get(key)
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        raise ValueError(f"{key!r} must be an object, not {section!r:.80}")
    unknown = sorted(set(section) - known)
    if unknown:
        raise ValueError(f"{key!r} has no {unknown[0]!r}; known there: {', '.join(sorted(known))}")
    return section


def _layer(index: int, document: object) -> Layer:
    if not isinstance(document, Mapping):
        raise ValueError(f"layer {index} must be an object with its times, not {document!r:.80}")
    try:
        return Layer(
            forward=_number(document, "forward"),
            backward_input=_number(document, "backward_input"),
            backward_weight=_number(document, "backward_weight", 0),
            activation=_number(document, "activation", 1),
        )
    except ValueError as error:
        raise ValueError(f"layer {index}: {error}") from error


def _speeds(document: Mapping[str, Any]) -> tuple[float, ...]:
    speeds = document.get("device_speeds")
    if speeds is None:
        return ()
    if not isinstance(speeds, list | tuple) or not speeds:
        raise ValueError(f"'device_speeds' must be a list of numbers, one a device, not {speeds!r:.80}")
    return tuple(_number({"device_speeds": speed}, "device_speeds") for speed in speeds)


def _bias(roles: Mapping[str, Any]) -> StageBias | None:
    costs = {role: _section(roles, role, frozenset({"forward", "backward_input"})) for role in roles}
    biases = {
        role: RoleCost(forward=_number(cost, "forward", 0), backward_input=_number(cost, "backward_input", 0))
        for role, cost in costs.items()
    }
    return StageBias(**biases) if biases else None


def _choice(document: Mapping[str, Any], key: str, default: _Choice) -> _Choice:
    value = document.get(key, default)
    if value not in list(type(default)):
        raise ValueError(f"{key!r} must be one of {', '.join(type(default))}, not {value!r:.80}")
    return type(default)(value)


def _number(document: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = document.get(key, default)
    if value is None and key not in document:
        raise ValueError(f"{key!r} is missing; docs/pipelines.md has the format")
    # Anything larger cannot be told from infinity once it is multiplied.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
        raise ValueError(f"{key!r} must be a number, not {value!r:.80}")
    return value


def _integer(document: Mapping[str, Any], key: str) -> int:
    value = _number(document, key)
    if value != int(value):
        raise ValueError(f"{key!r} must be a whole number, not {value!r}")
    return int(value)
