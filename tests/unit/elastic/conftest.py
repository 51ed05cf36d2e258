"""Layouts that no person would write down, and a model small enough to look at all of it."""

import pytest
import torch
from hypothesis import strategies as st

from evenkeel.layouts.layout import Layout, Replica, Stage
from evenkeel.trainer_sdk.elastic.config import ModelConfig, TrainingConfig, WorkloadConfig
from tests.unit.layouts.strategies import ordered_replicas

NUM_BLOCKS = 5


@st.composite
def _layouts(draw: st.DrawFn, max_ranks: int = 12) -> Layout:
    num_replicas = draw(st.integers(1, 3))
    pool = draw(st.permutations(range(max_ranks)))
    replicas = []
    for d in range(num_replicas):
        share_of_pool = max_ranks // num_replicas
        mine = list(pool[d * share_of_pool : (d + 1) * share_of_pool])
        num_stages = draw(st.integers(1, min(NUM_BLOCKS, len(mine))))
        inner = draw(st.sets(st.integers(1, NUM_BLOCKS - 1), min_size=num_stages - 1, max_size=num_stages - 1))
        borders = [0, *sorted(inner), NUM_BLOCKS]
        stages = []
        for s in range(num_stages):
            spare = len(mine) - (num_stages - s - 1)
            width = draw(st.integers(1, min(4, spare)))
            ranks = tuple(mine[:width])
            del mine[:width]
            shares = tuple(draw(st.lists(st.integers(1, 9), min_size=width, max_size=width)))
            stages.append(Stage(first_block=borders[s], stop_block=borders[s + 1], ranks=ranks, shares=shares))
        if draw(st.integers(0, 3)) == 0:
            replicas.append(draw(ordered_replicas(NUM_BLOCKS, [stage.ranks for stage in stages])))
            continue
        quota = draw(st.integers(1 if d == 0 else 0, 4))
        replicas.append(Replica(stages=tuple(stages), num_micro_batches=quota))
    return Layout(num_blocks=NUM_BLOCKS, replicas=tuple(replicas))


@pytest.fixture(scope="session")
def any_layout() -> st.SearchStrategy[Layout]:
    return _layouts()


@pytest.fixture(scope="session")
def small_config() -> TrainingConfig:
    torch.set_num_threads(1)
    return TrainingConfig(
        dtype="float64",
        model=ModelConfig(num_layers=NUM_BLOCKS - 2, num_heads=3, head_dim=4, mlp_multiple=2, max_document_length=32),
        workload=WorkloadConfig(
            num_micro_batches=3, token_budget=48, median_document_length=14.0, corpus_bytes=200_000
        ),
    )
