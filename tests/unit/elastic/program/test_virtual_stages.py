"""Several stages of a replica on one rank, in one process, against the model in one piece."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.layouts.layout import Layout
from evenkeel.trainer_sdk.devices.real_device import CpuDevice
from evenkeel.trainer_sdk.elastic.config import TrainingConfig
from evenkeel.trainer_sdk.elastic.model.data import Dataset
from evenkeel.trainer_sdk.elastic.model.reference import reference_runtime
from evenkeel.trainer_sdk.elastic.program.runtime import EpochRuntime
from evenkeel.trainer_sdk.elastic.state.shard_state import initial_state
from evenkeel.trainer_sdk.emit.phases import Phases
from evenkeel.trainer_sdk.emit.progress import ProgressMark
from tests.unit.layouts.strategies import ordered_replicas


def _runtime(config: TrainingConfig, layout: Layout) -> EpochRuntime:
    state, phases = initial_state(config, layout, 0), Phases(CpuDevice(), ProgressMark())
    return EpochRuntime(config, Dataset(config), 0, state, {}, phases)


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_any_cut_and_any_order_give_the_gradients_and_losses_of_the_whole(
    data: st.DataObject, small_config: TrainingConfig
) -> None:
    replica = data.draw(ordered_replicas(small_config.model.num_blocks, [(0,)], max_quota=3))
    workload = replace(small_config.workload, num_micro_batches=replica.num_micro_batches)
    config = replace(small_config, workload=workload)
    layout = Layout(num_blocks=config.model.num_blocks, replicas=(replica,))
    whole, cut = reference_runtime(config), _runtime(config, layout)
    assert sorted(cut.models) == list(range(len(replica.stages)))
    for iteration in range(2):
        assert cut.run_iteration(iteration) == pytest.approx(whole.run_iteration(iteration), rel=1e-12)
        assert sorted(batch.index for batch in cut.batches) == list(range(replica.num_micro_batches))
        found, expected = cut.sums.gradients(), whole.sums.gradients()
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-10, atol=1e-16, msg=name)
        cut.step(1.0)
        whole.step(1.0)
