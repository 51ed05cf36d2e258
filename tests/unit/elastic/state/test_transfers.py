import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.layouts.copies import place_copies
from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.layouts.model import BlockCost, ModelSpec
from evenkeel.trainer_sdk.elastic.config import ModelConfig, TrainingConfig
from evenkeel.trainer_sdk.elastic.gradients.exchange import plan_exchange
from evenkeel.trainer_sdk.elastic.model.model import parameter_specs
from evenkeel.trainer_sdk.elastic.model.parameters import ParameterSpec
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap
from evenkeel.trainer_sdk.elastic.state.transfers import MissingSliceError, plan_transfers


def _elements(ownership: OwnershipMap, rank: int, name: str) -> set[int]:
    held = ownership.held_by(rank).get(name)
    return set() if held is None else set(range(held.start, held.stop))


@given(data=st.data())
def test_every_needed_element_arrives_once_from_a_live_rank_that_holds_it(
    data: st.DataObject, any_layout: st.SearchStrategy, small_config: TrainingConfig
) -> None:
    old, new = data.draw(any_layout), data.draw(any_layout)
    sources = data.draw(st.sets(st.sampled_from(old.ranks), min_size=1))
    specs = parameter_specs(small_config.model)
    before, after = OwnershipMap(specs, old), OwnershipMap(specs, new)
    alive: dict[str, set[int]] = {
        spec.name: set().union(*(_elements(before, rank, spec.name) for rank in sources)) for spec in specs
    }
    complete = all(alive[spec.name] == set(range(spec.cut_size)) for spec in specs)
    if not complete:
        with pytest.raises(MissingSliceError, match="holds"):
            plan_transfers(specs, old, new, sources)
        return
    copies = plan_transfers(specs, old, new, sources)
    for spec in specs:
        for rank in new.ranks:
            local = _elements(before, rank, spec.name) if rank in sources else set()
            arrived: list[int] = []
            for copy in copies:
                if copy.name == spec.name and copy.destination == rank:
                    assert copy.source in sources
                    moved = set(range(copy.start, copy.stop))
                    assert moved, "an empty copy"
                    assert moved <= _elements(before, copy.source, spec.name)
                    arrived += range(copy.start, copy.stop)
            needed = _elements(after, rank, spec.name)
            assert sorted(arrived) == sorted(needed - local), "each missing element once, nothing that is local"


@given(data=st.data())
def test_the_same_layout_with_everybody_alive_moves_nothing(
    data: st.DataObject, any_layout: st.SearchStrategy, small_config: TrainingConfig
) -> None:
    layout = data.draw(any_layout)
    assert plan_transfers(parameter_specs(small_config.model), layout, layout, layout.ranks) == ()


def test_a_replacement_reads_from_all_that_hold_its_tensors(small_config: TrainingConfig) -> None:
    layout = _uniform(data=3)
    joiner = 0
    copies = plan_transfers(parameter_specs(small_config.model), layout, layout, set(layout.ranks) - {joiner})
    assert {copy.destination for copy in copies} == {joiner}
    specs = {spec.name: spec for spec in parameter_specs(small_config.model)}
    sent: dict[int, int] = {}
    for copy in copies:
        sent[copy.source] = sent.get(copy.source, 0) + (copy.stop - copy.start) * specs[copy.name].row_elements
    assert set(sent) >= {4, 8}, "replica peers that hold the same slices"
    assert max(sent.values()) < 0.4 * sum(sent.values()), f"one source does it all: {sent}"


def test_a_leaver_is_read_only_when_nobody_who_stays_holds_the_slice(small_config: TrainingConfig) -> None:
    specs = parameter_specs(small_config.model)
    two, one = _uniform(data=2), _uniform(data=1)
    assert plan_transfers(specs, two, one, two.ranks) == ()
    shrunk = uniform_layout(num_blocks=5, tensor=1, pipeline=1, data=1, num_micro_batches=4)
    copies = plan_transfers(specs, one, shrunk, one.ranks)
    assert {copy.source for copy in copies} == {1, 2, 3}


def test_what_nobody_alive_holds_is_named(small_config: TrainingConfig) -> None:
    layout = _uniform(data=1)
    with pytest.raises(MissingSliceError, match=r"layer0\.wq\[0:"):
        plan_transfers(parameter_specs(small_config.model), layout, layout, {1, 2, 3})


def _uniform(*, data: int) -> Layout:
    return uniform_layout(num_blocks=5, tensor=2, pipeline=2, data=data, num_micro_batches=4)


@given(data=st.data())
def test_the_copies_are_those_of_looking_at_every_holder_for_every_piece(
    data: st.DataObject, any_layout: st.SearchStrategy, small_config: TrainingConfig
) -> None:
    old, new = data.draw(any_layout), data.draw(any_layout)
    sources = set(old.ranks) - data.draw(st.sets(st.sampled_from(old.ranks), max_size=2))
    specs = parameter_specs(replace(small_config.model, head_dim=16))
    try:
        expected = _the_long_way(specs, old, new, sources)
    except MissingSliceError:
        return
    found = plan_transfers(specs, old, new, sources)
    assert [(each.name, each.start, each.stop, each.source, each.destination) for each in found] == expected


def _the_long_way(
    specs: Sequence[ParameterSpec], old: Layout, new: Layout, sources: set[int]
) -> list[tuple[str, int, int, int, int]]:
    """The rule as its docstring says it: pieces between borders; who stays and has sent least; large ones shared."""
    before, after = OwnershipMap(specs, old), OwnershipMap(specs, new)
    sent, copies = dict.fromkeys(old.ranks, 0), []
    for spec in specs:
        held = {rank: one for rank, one in sorted(before.holders(spec.name).items()) if rank in sources and len(one)}
        borders = {border for one in held.values() for border in (one.start, one.stop)}
        for wanted, need in after.holders(spec.name).items():
            cuts = sorted({need.start, need.stop, *(b for b in borders if need.start < b < need.stop)})
            for start, stop in pairwise(cuts):
                able = [rank for rank, one in held.items() if one.start <= start and stop <= one.stop]
                if wanted in able:
                    continue
                if not able:
                    raise MissingSliceError(spec.name)
                able = [rank for rank in able if rank in new.ranks] or able
                able.sort(key=lambda rank: (sent[rank], rank))
                parts = max(1, min(len(able), stop - start, (stop - start) * spec.row_elements // 1024))
                for number, source in enumerate(able[:parts]):
                    first = start + (stop - start) * number // parts
                    last = start + (stop - start) * (number + 1) // parts
                    sent[source] += (last - first) * spec.row_elements
                    copies.append((spec.name, first, last, source, wanted))
    return copies


MANY_BLOCKS = ModelSpec(blocks=(BlockCost(forward_flops_per_token=1.0, forward_flops_per_squared_length=0.0),) * 64)


@pytest.mark.parametrize(("tensor", "pipeline", "data"), [(8, 8, 16), (8, 1, 128)])
def test_at_1024_ranks_each_rank_knows_in_less_than_a_million_calls_what_a_joiner_needs(
    tensor: int, pipeline: int, data: int
) -> None:
    specs = parameter_specs(ModelConfig(num_layers=62, num_heads=64, head_dim=128, mlp_multiple=4))
    layout = uniform_layout(
        num_blocks=64, tensor=tensor, pipeline=pipeline, data=data, num_micro_batches=data, schedule="1f1b"
    )
    num_calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        copies = plan_transfers(specs, layout, layout, set(layout.ranks) - {5})
        plan_exchange(OwnershipMap(specs, layout))
        place_copies(MANY_BLOCKS, layout, {rank: f"node-{rank // 8}" for rank in layout.ranks})
    finally:
        sys.setprofile(None)
    assert {copy.destination for copy in copies} == {5}
    assert num_calls < 1_000_000, "a quarter of a second of a processor is 400,000"
