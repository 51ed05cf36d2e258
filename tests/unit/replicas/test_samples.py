"""Which samples a micro-batch has."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.trainer_sdk.replicas.samples import batches_of, sample_indices


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 7), st.integers(1, 3))
def test_every_pass_takes_each_sample_once(num_samples: int, per_step: int, size: int, passes: int) -> None:
    wanted = passes * num_samples
    taken: list[int] = []
    step = 0
    while len(taken) < wanted:
        for micro_batch in range(per_step):
            taken += sample_indices(step, micro_batch, num_samples=num_samples, per_step=per_step, size=size, seed=5)
        step += 1
    for start in range(0, wanted, num_samples):
        assert Counter(taken[start : start + num_samples]) == Counter(range(num_samples))


def test_passes_have_orders_of_their_own() -> None:
    first, second = (sample_indices(step, 0, num_samples=50, per_step=1, size=50, seed=0) for step in (0, 1))
    assert first != second


def test_a_dataset_is_asked_for_its_share_only() -> None:
    asked = []

    class Samples:
        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> torch.Tensor:
            asked.append(index)
            return torch.tensor(index)

    batch = batches_of(Samples(), per_step=3, size=2)(1, 1)
    assert batch.tolist() == asked
    assert len(asked) == 2


def test_a_function_is_taken_as_it_is() -> None:
    def batches(step: int, micro_batch: int) -> tuple[int, int]:
        return step, micro_batch

    assert batches_of(batches, per_step=2)(4, 1) == (4, 1)


@pytest.mark.parametrize(("source", "error"), [(iter([1]), TypeError), ([], ValueError)])
def test_what_cannot_be_used_is_refused(source: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        batches_of(source, per_step=2)  # type: ignore[arg-type]
