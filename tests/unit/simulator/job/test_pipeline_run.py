import functools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.layouts.layout import Layout, Replica, Stage, uniform_layout
from evenkeel.layouts.model import BlockCost, ModelSpec
from evenkeel.layouts.programs.interleaved import interleaved_orders
from evenkeel.layouts.programs.routes import Route
from evenkeel.simulator.job.hardware import Hardware
from evenkeel.simulator.job.links import LinkConditions
from evenkeel.simulator.job.noise import real_series, resampled_factors
from evenkeel.simulator.job.observations import frames
from evenkeel.simulator.job.pipeline_run import run_pipeline
from evenkeel.simulator.job.workload import Workload, draw_lengths, length_histogram, packed_workload
from tests.unit.layouts.strategies import layouts

BLOCK = BlockCost(forward_flops_per_token=1.0, forward_flops_per_squared_length=0.0, max_width=12)
UNIT_HARDWARE = Hardware(seconds_per_flop=1.0)


def model_of(num_blocks):
    return ModelSpec(blocks=(BLOCK,) * num_blocks)


def even_workload(num_iterations, num_micro_batches, tokens=1.0):
    shape = (num_iterations, num_micro_batches)
    return Workload(tokens=np.full(shape, tokens), sum_of_squares=np.full(shape, tokens**2))


@given(st.integers(1, 6), st.integers(1, 8))
def test_an_even_pipeline_takes_the_closed_form_of_one_f_one_b(num_stages, num_micro_batches):
    layout = uniform_layout(
        num_blocks=num_stages, tensor=1, pipeline=num_stages, data=1, num_micro_batches=num_micro_batches
    )
    times = run_pipeline(
        model=model_of(num_stages),
        layout=layout,
        hardware=UNIT_HARDWARE,
        workload=even_workload(2, num_micro_batches),
        slowdown=np.ones((2, num_stages)),
    )
    # Forward 1 s, backward 2 s: (m + p - 1) slots of 3 s.
    assert times.wall == pytest.approx(np.full_like(times.wall, 3.0 * (num_micro_batches + num_stages - 1)))


def test_a_layout_with_routes_is_refused():
    layout = uniform_layout(num_blocks=2, tensor=1, pipeline=2, data=2, num_micro_batches=4)
    routed = replace(layout, routes=(Route(micro_batch=0, stage=0, replica=1),))
    with pytest.raises(ValueError, match="1 routes: simulated jobs must not say"):
        run_pipeline(
            model=model_of(2),
            layout=routed,
            hardware=UNIT_HARDWARE,
            workload=even_workload(1, 4),
            slowdown=np.ones((1, 4)),
        )


def test_a_layout_whose_ranks_have_several_stages_is_refused():
    stages = tuple(Stage(first_block=s, stop_block=s + 1, ranks=(0,), shares=(1,)) for s in range(2))
    replica = Replica(stages=stages, num_micro_batches=1, orders=interleaved_orders(1, 2, 1))
    with pytest.raises(ValueError, match="several stages: simulated jobs must not say"):
        run_pipeline(
            model=model_of(2),
            layout=Layout(num_blocks=2, replicas=(replica,)),
            hardware=UNIT_HARDWARE,
            workload=even_workload(1, 1),
            slowdown=np.ones((1, 1)),
        )


@given(layouts(), st.integers(0, 2**32 - 1))
def test_every_second_of_an_iteration_is_compute_or_waiting(layout, seed):
    rng = np.random.default_rng(seed)
    slowdown = rng.uniform(0.5, 3.0, (2, len(layout.ranks)))
    times = run_pipeline(
        model=model_of(layout.num_blocks),
        layout=layout,
        hardware=Hardware(
            seconds_per_flop=1.0,
            tensor_seconds=0.1,
            transfer_seconds=0.3,
            exchange_seconds=0.5,
            optimizer_seconds=0.2,
        ),
        workload=even_workload(2, layout.num_micro_batches),
        slowdown=slowdown,
    )
    busy = times.forward + times.backward + 0.2
    waiting = times.waiting_tensor + times.waiting_pipeline + times.waiting_gradient + times.waiting_vote
    assert (waiting >= -1e-9).all()
    assert busy + waiting == pytest.approx(times.wall)


class PerfectLinks(LinkConditions):
    """Links that keep to what the hardware says."""

    def factors(self, ranks):
        return np.ones(self.num_iterations)


@given(layouts(), st.integers(0, 2**32 - 1))
def test_replicas_played_side_by_side_take_exactly_what_they_take_one_by_one(layout, seed):
    rng = np.random.default_rng(seed)
    shape = (3, layout.num_micro_batches)
    squares = rng.uniform(1.0, 9.0, shape)
    block = BlockCost(forward_flops_per_token=1.0, forward_flops_per_squared_length=0.1, max_width=12)
    run = functools.partial(
        run_pipeline,
        model=ModelSpec(blocks=(block,) * layout.num_blocks),
        layout=layout,
        hardware=Hardware(seconds_per_flop=0.7, tensor_seconds=0.1, transfer_seconds=0.3, exchange_seconds=0.5),
        workload=Workload(tokens=rng.uniform(1.0, 5.0, shape), sum_of_squares=squares),
        slowdown=rng.uniform(0.5, 3.0, (3, len(layout.ranks))),
    )
    together, one_by_one = run(), run(links=PerfectLinks(rng=rng, num_iterations=3))
    for name in (
        "forward",
        "backward",
        "waiting_tensor",
        "waiting_pipeline",
        "waiting_gradient",
        "waiting_vote",
        "wall",
    ):
        assert np.array_equal(getattr(together, name), getattr(one_by_one, name)), name


def test_a_slow_rank_delays_everybody_but_only_its_own_compute_grows():
    layout = uniform_layout(num_blocks=4, tensor=2, pipeline=2, data=2, num_micro_batches=8)
    workload = even_workload(1, 8)
    healthy, slow = np.ones((1, 8)), np.ones((1, 8))
    slow[0, 5] = 2.0
    before, after = (
        run_pipeline(model=model_of(4), layout=layout, hardware=UNIT_HARDWARE, workload=workload, slowdown=factors)
        for factors in (healthy, slow)
    )
    assert (after.wall > before.wall * 1.3).all()
    changed = np.nonzero(~np.isclose(after.forward, before.forward))[1]
    assert changed.tolist() == [5]


def test_packing_fills_the_budget_and_long_tails_raise_the_squares():
    rng = np.random.default_rng(0)
    short = packed_workload(rng, num_iterations=20, num_micro_batches=4, token_budget=4096)
    long = packed_workload(rng, num_iterations=20, num_micro_batches=4, token_budget=4096, length_scale=4.0, tail=1.0)
    assert (short.tokens == 4096).all()
    assert (short.sum_of_squares <= 4096**2).all()
    assert long.sum_of_squares.mean() > 2 * short.sum_of_squares.mean()


@given(st.integers(0, 2**32 - 1))
def test_lengths_are_drawn_as_the_generator_would_choose_them(seed):
    ours, theirs = (np.random.default_rng(seed) for _ in range(2))
    lengths, probabilities = length_histogram()
    assert np.array_equal(draw_lengths(ours, (50, 40)), theirs.choice(lengths, size=(50, 40), p=probabilities))
    assert ours.random() == theirs.random()


def test_noise_comes_from_the_real_runs_and_repeats_with_the_seed():
    first, second = (resampled_factors(np.random.default_rng(7), 400) for _ in range(2))
    assert (first == second).all()
    assert abs(np.median(first) - 1.0) < 0.02
    assert len(real_series()) > 80
    assert np.isin(first, np.concatenate(real_series())).all()


def test_frames_carry_what_the_ranks_measured():
    layout = uniform_layout(num_blocks=4, tensor=2, pipeline=2, data=1, num_micro_batches=2)
    workload = even_workload(3, 2, tokens=10.0)
    times = run_pipeline(
        model=model_of(4), layout=layout, hardware=UNIT_HARDWARE, workload=workload, slowdown=np.ones((3, 4))
    )
    stream = list(
        frames(
            model=model_of(4),
            layout=layout,
            hardware=UNIT_HARDWARE,
            workload=workload,
            times=times,
            devices_per_node=2,
        )
    )
    assert [one.iteration.tolist() for one in stream] == [[0], [1], [2]]
    frame, members = stream[1], stream[1].members
    assert (members.rank[3], members.nodes[3], members.devices[3]) == (3, "node-1", "gpu-1")
    assert frame.forward_seconds[0, 3] == times.forward[1, 3]
    assert frame.listed_tokens[-2:].tolist() == [10, 10]
    assert members.forward_flops_per_token[3] == pytest.approx(1.0)
    assert frame.started_at_unix_seconds[0, 0] == stream[0].closed_at_unix_seconds[0]
