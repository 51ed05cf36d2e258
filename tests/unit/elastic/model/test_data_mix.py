from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.layouts.sizes.mix import Mix, even_mix
from evenkeel.trainer_sdk.elastic.config import ModelConfig, TrainingConfig, WorkloadConfig
from evenkeel.trainer_sdk.elastic.model.data import Dataset

WORKLOAD = WorkloadConfig(num_micro_batches=6, token_budget=256, length_spread=1.2, corpus_bytes=200_000)
CONFIG = TrainingConfig(model=ModelConfig(num_layers=1, max_document_length=256), workload=WORKLOAD)
DATASET = Dataset(CONFIG)


def documents_of(dataset, iteration):
    return [
        document
        for index in range(6)
        for each in [dataset.documents(iteration, index)]
        for document in zip(each.starts, each.lengths, strict=True)
    ]


def work_of(dataset, iteration):
    return [
        each.num_tokens + 0.003 * each.sum_of_squares
        for index in range(6)
        for each in [dataset.documents(iteration, index)]
    ]


@given(st.integers(0, 5000), st.tuples(st.integers(500, 1500), st.integers(500, 1500)))
@settings(max_examples=60, deadline=None)
def test_an_iteration_consumes_the_same_documents_under_every_mix(iteration, weights):
    mix = Mix(counts=(2, 4), weights=weights, token_cost=1.0, square_cost=0.02)
    view = DATASET.under(mix)
    assert Counter(documents_of(view, iteration)) == Counter(documents_of(DATASET, iteration))
    assert view.total_tokens(iteration) == DATASET.total_tokens(iteration)
    assert max(view.documents(iteration, index).num_tokens for index in range(6)) <= 256 * 1.5


def test_micro_batches_are_as_even_as_the_longest_document_allows():
    rule = even_mix((6,), token_cost=1.0, square_cost=0.003)
    view = DATASET.under(rule)
    drawn = dealt = possible = 0.0
    for iteration in range(40):
        drawn += max(work_of(DATASET, iteration))
        dealt += max(work_of(view, iteration))
        longest = max(rule.cost(length) for _, length in documents_of(DATASET, iteration))
        possible += max(longest, sum(work_of(DATASET, iteration)) / 6)
    assert dealt < 1.03 * possible
    assert drawn > 1.08 * dealt


def test_a_view_leaves_its_dataset_as_it_was():
    before = documents_of(DATASET, 3)
    view = DATASET.under(even_mix((6,), token_cost=1.0, square_cost=0.0))
    batch = view.micro_batch(3, 1)
    assert batch.documents == view.documents(3, 1)
    assert batch.tokens.numel() == batch.documents.num_tokens
    assert documents_of(DATASET, 3) == before
    assert documents_of(view.under(None), 3) == before


@pytest.mark.parametrize("iteration", [0, 7])
def test_documents_stay_as_drawn_where_they_do_not_fit_the_limit(iteration):
    tight = DATASET.under(Mix(counts=(1, 5), weights=(1, 1_000_000), token_cost=1.0, square_cost=0.0, max_scale=1.0))
    assert Counter(documents_of(tight, iteration)) == Counter(documents_of(DATASET, iteration))
    assert max(tight.documents(iteration, index).num_tokens for index in range(6)) <= 256
