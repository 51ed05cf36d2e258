"""A question to the planner written down: what ``evenkeel plan`` reads. The schema is in ``docs/planning.md``.

Every error says where in the document it is and what is allowed there.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from history.documents import layout_from_document
from layouts.layout import Layout, uniform_layout
from layouts.mix import mix_for
from layouts.model import BlockCost, ModelSpec
from layouts.schedules import SCHEDULES, schedules_named
from services.scheduler.planning.cost_model import ASSUMED_WORKLOAD, CostModel, Workload
from services.scheduler.planning.decision import DecisionRule
from services.scheduler.planning.price import TransitionCosts
from services.scheduler.planning.recent import RecentIteration
from services.scheduler.planning.situation import Situation

_KNOWN = frozenset(
    {"model", "layout", "home", "throughputs", "workload", "correction", "transition", "device_bytes", "rule", "flips"}
)
_DEGREES = frozenset(
    {
        "num_blocks",
        "tensor",
        "pipeline",
        "data",
        "num_micro_batches",
        "schedule",
        "schedules",
        "standbys",
        "mix",
        "routable",
        "interleavable",
    }
)
_T = TypeVar("_T", Workload, TransitionCosts, DecisionRule, BlockCost)


class StateError(ValueError):
    """The document cannot be used; the message says where and what to change."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WrittenQuestion:
    """A question with the rule by which its answer is weighed.

    Attributes:
        situation: The question.
        rule: When a plan pays.
        num_flips: How often the culprits changed between slow and healthy lately.
    """

    situation: Situation
    rule: DecisionRule
    num_flips: int


def question_from_document(document: object) -> WrittenQuestion:
    """The question in a parsed JSON document.

    Raises:
        StateError: Something is missing, unknown or out of range.
    """
    state = _mapping(document, "the file", _KNOWN, required=("model", "layout"))
    model = _model(state["model"])
    layout = _layout(state["layout"], "layout", model)
    home = _layout(state["home"], "home", model) if "home" in state else layout
    workload = _workload(state["workload"]) if "workload" in state else ASSUMED_WORKLOAD
    sizes = {len(one.tokens) for one in workload.recent} - {layout.num_micro_batches}
    if sizes:
        raise StateError(f"workload.recent: {sizes.pop()} micro-batches, the layout has {layout.num_micro_batches}")
    throughputs = _throughputs(state.get("throughputs", {}), home, layout)
    live = frozenset(throughputs)
    device_bytes = _number(state["device_bytes"], "device_bytes") if "device_bytes" in state else None
    try:
        situation = Situation(
            layout=layout,
            home=home,
            throughputs=throughputs,
            cost=CostModel(model, workload, _number(state.get("correction", 1.0), "correction")),
            holders=live & frozenset(layout.ranks),
            transition=_filled(TransitionCosts, state.get("transition", {}), "transition"),
            device_bytes=device_bytes,
        )
    except ValueError as error:
        raise StateError(str(error)) from error
    return WrittenQuestion(
        situation=situation,
        rule=_filled(DecisionRule, state.get("rule", {}), "rule"),
        num_flips=_whole(state.get("flips", 0), "flips"),
    )


def _mapping(
    value: object, path: str, known: frozenset[str] | None = None, required: Sequence[str] = ()
) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise StateError(f"{path}: expected an object, found {value!r:.80}")
    missing = [name for name in required if name not in value]
    unknown = sorted(set(value) - known) if known is not None else []
    if missing or unknown:
        said = [f"missing {', '.join(missing)}"] * bool(missing) + [f"unknown {', '.join(unknown)}"] * bool(unknown)
        raise StateError(f"{path}: {'; '.join(said)}; known here: {', '.join(sorted(known or ()))}")
    return value


def _number(value: object, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise StateError(f"{path}: expected a number, found {value!r}")
    return float(value)


def _whole(value: object, path: str) -> int:
    number = _number(value, path)
    if number != int(number) or number < 0:
        raise StateError(f"{path}: expected a whole number of at least 0, found {value!r}")
    return int(number)


def _filled(kind: type[_T], value: object, path: str) -> _T:
    """A dataclass of numbers from an object with some of its fields."""
    names = frozenset(field.name for field in fields(kind)) - {"measured", "recent"}
    given = _mapping(value, path, names)
    whole = {field.name for field in fields(kind) if field.type is int}
    numbers = {
        name: _whole(each, f"{path}.{name}") if name in whole else _number(each, f"{path}.{name}")
        for name, each in given.items()
    }
    try:
        return kind(**numbers)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise StateError(f"{path}: {error}") from error


def _workload(value: object) -> Workload:
    given = dict(_mapping(value, "workload"))
    recent = given.pop("recent", ())
    if not isinstance(recent, Sequence) or isinstance(recent, str):
        raise StateError("workload.recent: expected a list of iterations")
    iterations = [_iteration(each, f"workload.recent[{index}]") for index, each in enumerate(recent)]
    workload = _filled(Workload, given, "workload")
    try:
        return replace(workload, recent=tuple(iterations))
    except ValueError as error:
        raise StateError(f"workload.recent: {error}") from error


def _iteration(value: object, path: str) -> RecentIteration:
    names = ("wall_seconds", "tokens", "sums_of_squares")
    given = _mapping(value, path, frozenset(names), required=names)
    sizes = []
    for name in names[1:]:
        if not isinstance(given[name], list):
            raise StateError(f"{path}.{name}: expected a list of whole numbers, one for each micro-batch")
        sizes.append(tuple([_whole(each, f"{path}.{name}[{place}]") for place, each in enumerate(given[name])]))
    try:
        return RecentIteration(
            wall_seconds=_number(given["wall_seconds"], f"{path}.wall_seconds"),
            tokens=sizes[0],
            sums_of_squares=sizes[1],
        )
    except ValueError as error:
        raise StateError(f"{path}: {error}") from error


def _model(value: object) -> ModelSpec:
    model = _mapping(value, "model", frozenset({"blocks", "activation_bytes_per_token"}), required=("blocks",))
    given = model["blocks"]
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise StateError("model.blocks: expected a list of at least one block")
    blocks: list[BlockCost] = []
    for index, each in enumerate(given):
        path = f"model.blocks[{index}]"
        block = dict(_mapping(each, path))
        count = _whole(block.pop("count", 1), f"{path}.count")
        blocks += [_filled(BlockCost, block, path)] * count
    return ModelSpec(
        blocks=tuple(blocks),
        activation_bytes_per_token=_whole(
            model.get("activation_bytes_per_token", 0), "model.activation_bytes_per_token"
        ),
    )


def _layout(value: object, path: str, model: ModelSpec) -> Layout:
    """A layout document as the history keeps it, or the degrees of a uniform one."""
    given = dict(_mapping(value, path))
    try:
        if "replicas" in given:
            layout = layout_from_document({"schedule": "1f1b", "standbys": [], **given})
        else:
            _mapping(given, path, _DEGREES, required=("tensor", "pipeline", "data", "num_micro_batches"))
            mix, num_standbys = given.pop("mix", False), _whole(given.pop("standbys", 0), f"{path}.standbys")
            schedules = schedules_named(given.pop("schedules", False))
            can = {name: given.pop(name, False) for name in ("routable", "interleavable")}
            for name, allowed in can.items():
                if not isinstance(allowed, bool):
                    raise StateError(f"{path}.{name}: expected true or false, found {allowed!r}")
            layout = uniform_layout(**{"num_blocks": len(model.blocks), **given})
            first = len(layout.ranks)
            standbys = tuple(range(first, first + num_standbys))
            layout = replace(layout, standbys=standbys, schedules=schedules, **can)
            if mix is not False:
                quotas = [replica.num_micro_batches for replica in layout.replicas]
                largest = {} if mix is True else {"max_scale": _number(mix, f"{path}.mix")}
                rule = mix_for(model, quotas, num_stages=len(layout.replicas[0].stages), **largest)
                layout = replace(layout, mix=rule)
    except StateError:
        raise
    except KeyError as error:
        raise StateError(f"{path}: missing {error}") from error
    except (TypeError, ValueError) as error:
        raise StateError(f"{path}: {error}") from error
    unknown = sorted({layout.schedule, *layout.schedules} - SCHEDULES.keys())
    if unknown:
        raise StateError(f"{path}: unknown schedule {unknown[0]!r}; known: {', '.join(sorted(SCHEDULES))}")
    if layout.num_blocks != len(model.blocks):
        raise StateError(f"{path}: it has {layout.num_blocks} blocks, the model {len(model.blocks)}")
    return layout


def _throughputs(value: object, home: Layout, layout: Layout) -> dict[int, float]:
    """Speed of every live rank; who is not named is healthy, and 0 means dead."""
    ranks = {*home.ranks, *home.standbys, *layout.ranks, *layout.standbys}
    speeds = dict.fromkeys(sorted(ranks), 1.0)
    for name, each in _mapping(value, "throughputs").items():
        speed = _number(each, f"throughputs.{name}")
        if not name.isdecimal() or int(name) not in ranks:
            raise StateError(f"throughputs: no rank {name!r}; the layouts have 0 to {max(ranks)}")
        if not 0.0 <= speed <= 16.0:
            raise StateError(f"throughputs.{name}: {speed:g} must be from 0 (dead) to 16")
        speeds[int(name)] = speed
    return {rank: speed for rank, speed in speeds.items() if speed > 0.0}
