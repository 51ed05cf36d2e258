import itertools
import json
import math

from hypothesis import given
from hypothesis import strategies as st

from evenkeel.history.documents import (
    evidence_from_documents,
    evidence_to_documents,
    layout_from_document,
    layout_to_document,
    model_from_document,
    model_to_document,
)
from evenkeel.history.records import EvidenceRecord
from evenkeel.layouts.layout import Layout, Replica, Stage
from evenkeel.layouts.model import BlockCost, ModelSpec
from tests.unit.layouts.strategies import ordered_layouts

COSTS = st.floats(min_value=0, allow_infinity=False, allow_nan=False)
SIZES = st.integers(min_value=0, max_value=2**62)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Any layout: replicas that differ in splits, widths and quotas."""
    num_blocks = draw(st.integers(1, 8))
    ranks = iter(range(1000))
    replicas = []
    for index in range(draw(st.integers(1, 3))):
        inner = draw(st.sets(st.integers(1, num_blocks - 1))) if num_blocks > 1 else set()
        borders = [0, *sorted(inner), num_blocks]
        stages = []
        for first, stop in itertools.pairwise(borders):
            shares = tuple(draw(st.lists(st.integers(1, 100), min_size=1, max_size=4)))
            members = tuple(next(ranks) for _ in shares)
            stages.append(Stage(first_block=first, stop_block=stop, ranks=members, shares=shares))
        quota = draw(st.integers(1 if index == 0 else 0, 16))
        replicas.append(Replica(stages=tuple(stages), num_micro_batches=quota))
    standbys = tuple(next(ranks) for _ in range(draw(st.integers(0, 3))))
    return Layout(num_blocks=num_blocks, replicas=tuple(replicas), standbys=standbys)


MODELS = st.builds(
    ModelSpec,
    blocks=st.lists(
        st.builds(
            BlockCost,
            forward_flops_per_token=COSTS,
            forward_flops_per_squared_length=COSTS,
            backward_multiple=COSTS,
            parameter_bytes=SIZES,
            optimizer_bytes=SIZES,
            activation_bytes=SIZES,
            max_width=st.integers(1, 1024),
        ),
        max_size=4,
    ).map(tuple),
    activation_bytes_per_token=SIZES,
)


@given(layouts() | ordered_layouts())
def test_any_layout_survives_json(layout: Layout) -> None:
    assert layout_from_document(json.loads(json.dumps(layout_to_document(layout)))) == layout


@given(MODELS)
def test_any_model_survives_json(model: ModelSpec) -> None:
    assert model_from_document(json.loads(json.dumps(model_to_document(model)))) == model


def test_a_value_that_is_not_finite_becomes_null_and_comes_back_as_nan() -> None:
    facts = tuple(
        EvidenceRecord(name="loss", value=value, unit="", text="") for value in (math.nan, math.inf, -math.inf, 1.5)
    )

    documents = json.loads(json.dumps(evidence_to_documents(facts), allow_nan=False))

    assert [document["value"] for document in documents] == [None, None, None, 1.5]
    back = evidence_from_documents(documents)
    assert math.isnan(back[0].value)
    assert back[3] == facts[3]
