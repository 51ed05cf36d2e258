"""A question to the planner written down: what ``evenkeel plan`` reads, in the form of :data:`STATE_SCHEMA`.

The schema says what may stand where; the rest is said here: numbers that must go together, and what a layout
must be. Every error says where in the document it is and what is allowed there.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from evenkeel.history.documents import record_from_document
from evenkeel.layouts.json_schema import complaint
from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.layouts.model import BlockCost, ModelSpec
from evenkeel.layouts.programs.schedules import schedules_named
from evenkeel.layouts.sizes.mix import mix_for
from evenkeel.planning.costs.cost_model import ASSUMED_WORKLOAD, CostModel, Workload
from evenkeel.planning.costs.links import SlowLink
from evenkeel.planning.costs.price import TransitionCosts
from evenkeel.planning.documents.schema import MOST_BLOCKS, MOST_RANKS, STATE_SCHEMA
from evenkeel.planning.situation import Situation


class StateError(ValueError):
    """The document cannot be used; the message says where and what to change."""


def question_from_document(document: object) -> Situation:
    """The question in a parsed JSON document.

    Raises:
        StateError: Something is missing, unknown or out of range, or its parts do not go together.
    """
    flaw = complaint(STATE_SCHEMA, document)
    if flaw:
        raise StateError(flaw)
    try:
        return _question(_whole_numbers(document))
    except ValueError as error:
        raise StateError(str(error)) from error


def _question(state: Mapping[str, Any]) -> Situation:
    model, workload = _model(state["model"]), ASSUMED_WORKLOAD
    if "workload" in state:
        workload = record_from_document(Workload, state["workload"], "workload")
    if not sum(block.forward_flops(workload.tokens, workload.sum_of_squares) for block in model.blocks) > 0.0:
        raise ValueError("model.blocks: none of them computes anything; give one of them forward_flops_per_token")
    layout = _layout(state["layout"], "layout", model)
    home = _layout(state["home"], "home", model) if "home" in state else layout
    sizes = {len(one.tokens) for one in workload.recent} - {layout.num_micro_batches}
    if sizes:
        raise ValueError(f"workload.recent: {sizes.pop()} micro-batches, the layout has {layout.num_micro_batches}")
    throughputs = _throughputs(state.get("throughputs", {}), home, layout)
    return Situation(
        layout=layout,
        home=home,
        throughputs=throughputs,
        cost=CostModel(model, workload, float(state.get("correction", 1.0))),
        holders=(frozenset(throughputs) & frozenset(layout.ranks)).difference(state.get("vacant", ())),
        transition=record_from_document(TransitionCosts, state.get("transition", {}), "transition"),
        device_bytes=state.get("device_bytes"),
        domains={rank: domain for domain, ranks in state.get("domains", {}).items() for rank in ranks},
        links=tuple(
            [record_from_document(SlowLink, one, f"links[{index}]") for index, one in enumerate(state.get("links", ()))]
        ),
    )


def _model(model: Mapping[str, Any]) -> ModelSpec:
    blocks: list[BlockCost] = []
    for index, each in enumerate(model["blocks"]):
        blocks += [record_from_document(BlockCost, each, f"model.blocks[{index}]")] * each.get("count", 1)
        if len(blocks) > MOST_BLOCKS:
            raise ValueError(f"model.blocks: more than {MOST_BLOCKS} blocks")
    return ModelSpec(blocks=tuple(blocks), activation_bytes_per_token=model.get("activation_bytes_per_token", 0))


def _layout(given: Mapping[str, Any], path: str, model: ModelSpec) -> Layout:
    """A layout document as the history keeps it, or the degrees of a uniform one."""
    if "replicas" in given:
        layout = record_from_document(Layout, given, path)
    else:
        try:
            layout = _uniform(dict(given), model)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    if layout.num_blocks != len(model.blocks):
        raise ValueError(f"{path}: it has {layout.num_blocks} blocks, the model {len(model.blocks)}")
    return layout


def _uniform(given: dict[str, Any], model: ModelSpec) -> Layout:
    mix, num_standbys = given.pop("mix", False), given.pop("standbys", 0)
    schedules = schedules_named(given.pop("schedules", False))
    can = {name: given.pop(name, False) for name in ("routable", "interleavable", "whole")}
    num_ranks = given["tensor"] * given["pipeline"] * given["data"]
    if num_ranks + num_standbys > MOST_RANKS:
        raise ValueError(f"{num_ranks + num_standbys} ranks and standbys: at most {MOST_RANKS}")
    layout = uniform_layout(**{"num_blocks": len(model.blocks), **given})
    standbys = tuple(range(num_ranks, num_ranks + num_standbys))
    layout = replace(layout, standbys=standbys, schedules=schedules, **can)
    if mix is False:
        return layout
    quotas = [replica.num_micro_batches for replica in layout.replicas]
    largest = {} if mix is True else {"max_scale": float(mix)}
    return replace(layout, mix=mix_for(model, quotas, num_stages=len(layout.replicas[0].stages), **largest))


def _whole_numbers(value: Any) -> Any:
    """The same with 2.0 written as 2, which means the same in JSON."""
    if isinstance(value, Mapping):
        return {name: _whole_numbers(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_whole_numbers(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _throughputs(value: Mapping[str, float], home: Layout, layout: Layout) -> dict[int, float]:
    """Speed of every live rank; who is not named is healthy, and 0 means dead."""
    ranks = {str(rank): rank for rank in sorted({*home.ranks, *home.standbys, *layout.ranks, *layout.standbys})}
    unknown = [name for name in value if name not in ranks]
    if unknown:
        raise ValueError(f"throughputs: no rank {unknown[0]!r}; the layouts have 0 to {max(ranks.values())}")
    speeds = {rank: float(value.get(name, 1.0)) for name, rank in ranks.items()}
    return {rank: speed for rank, speed in speeds.items() if speed > 0.0}
