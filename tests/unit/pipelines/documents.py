"""The recorded cases, and strategies for small random ones."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from evenkeel import pipelines
from evenkeel.layouts.programs.orders import orders_from_lists
from evenkeel.pipelines.case import Backward, Case, Layer
from evenkeel.pipelines.plan import Plan

DATA = Path(pipelines.__file__).parent / "data"


@cache
def documents(name: str) -> tuple[dict[str, Any], ...]:
    return tuple(json.loads((DATA / f"{name}_cases.json").read_text(encoding="utf-8")))


def document(name: str, case: str) -> dict[str, Any]:
    return next(each for each in documents(name) if each["name"] == case)


def plan_of(written: dict[str, Any]) -> Plan:
    """The plan in a document of :func:`plan_to_json`."""
    device_of = {stage: device for device, stages in enumerate(written["placement"]) for stage in stages}
    return Plan(
        partition=tuple(written["partition"]),
        placement=tuple(device_of[stage] for stage in range(len(written["partition"]))),
        orders=orders_from_lists(written["schedule"]),
    )


@st.composite
def small_cases(draw: st.DrawFn) -> Case:
    layers = tuple(
        Layer(
            forward=draw(st.integers(1, 20)),
            backward_input=draw(st.integers(1, 20)),
            backward_weight=draw(st.integers(0, 20)),
            activation=draw(st.integers(1, 3)),
        )
        for _ in range(draw(st.integers(2, 9)))
    )
    devices = draw(st.integers(1, 4))
    held = sum(layer.activation for layer in layers)
    return Case(
        name="drawn",
        devices=devices,
        micro_batches=draw(st.integers(1, 6)),
        layers=layers,
        backward=draw(st.sampled_from(list(Backward))),
        communication=draw(st.integers(0, 5)),
        # One device can hold a whole micro-batch: some placement always fits.
        memory_limit=draw(st.none() | st.integers(int(held), int(3 * held))),
        speeds=tuple(draw(st.sampled_from([0.5, 0.8, 1.0, 1.0])) for _ in range(devices)),
    )
