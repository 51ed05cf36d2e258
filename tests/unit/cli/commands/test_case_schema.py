"""What the documented schema of a case allows is what ``evenkeel schedule`` reads."""

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from evenkeel.layouts.json_schema import complaint
from evenkeel.pipelines.case_file import case_from_json, passed_over
from tests.unit.pipelines.documents import documents

PAGE = Path(__file__).parents[4] / "docs" / "pipelines.md"
SCHEMA = next(json.loads(part.split("```")[0]) for part in PAGE.read_text().split("```json\n") if "$schema" in part)
LAYER = {"forward": 2.0, "backward_input": 3, "backward_weight": 1, "activation": 1}
CASE: dict[str, Any] = {
    "name": "full",
    "devices": 2,
    "micro_batches": 3,
    "layers": [LAYER, LAYER],
    "backward": "split",
    "communication": 0.5,
    "device_speeds": [1, 0.5],
    "memory": {"limit": 4, "release": "weight", "unit": "GiB"},
    "constraints": {"stages": 2, "placement": "cyclic", "fifo": True, "min_layers_per_stage": 1},
    "stage_bias": {"first": {"forward": 1}, "middle": {}, "last": {"backward_input": 2}},
}
VALUES: tuple[object, ...] = (
    None,
    True,
    -1,
    0,
    1,
    2,
    2.0,
    0.5,
    "2",
    "split",
    "any",
    [],
    [1, 1],
    [LAYER],
    {},
    {"typo": 1},
)


def places(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in pairs:
        yield from places(each, (*path, key))


def changed(path: tuple[Any, ...], value: object, *, removes: bool = False) -> dict[str, Any]:
    document = deepcopy(CASE)
    inside: Any = document
    for key in path[:-1]:
        inside = inside[key]
    if removes:
        del inside[path[-1]]
    else:
        inside[path[-1]] = value
    return document


def reads(document: dict[str, Any]) -> bool:
    # What a schema cannot say is made to fit: one speed a device, no more stages than layers, enough memory.
    said = ("device_speeds must hold", "but there are", "cannot hold one micro-batch")
    try:
        case_from_json(document)
    except ValueError as error:
        return any(each in str(error) for each in said)
    return True


@pytest.mark.parametrize("path", list(places(CASE)), ids=str)
def test_the_schema_and_the_reader_agree_about_every_change_of_a_case(path: tuple[Any, ...]) -> None:
    for document in [*(changed(path, value) for value in VALUES), changed(path, None, removes=True)]:
        assert (not complaint(SCHEMA, document)) == reads(document), document


@pytest.mark.parametrize("name", ["simpipe", "slackpipe", "tiny_optimum"])
def test_the_recorded_cases_are_of_the_schema(name: str) -> None:
    assert [complaint(SCHEMA, each) for each in documents(name)] == [""] * len(documents(name))


def test_keys_that_mean_nothing_are_told() -> None:
    assert passed_over({**CASE, "device_speed": 1, "layers": [{**LAYER, "kind": "M"}]}) == [
        "device_speed",
        "layers[].kind",
    ]
