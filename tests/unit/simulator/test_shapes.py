from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.simulator.shapes import TERMS, Shape, ShapeCost, device_bytes, fitted, terms

BLOOM = Shape(
    layers=70,
    hidden=14336,
    sequence=2048,
    micro_batch=2,
    global_batch=2048,
    tensor=4,
    pipeline=12,
    data=8,
    vocabulary=250_880,
    recompute=True,
)


def test_constants_that_made_the_measurements_are_found_again():
    truth = ShapeCost(seconds=(1 / 150e12, 1 / 600e12, 2e-3, 1 / 150e9, 2e-4, 1 / 8e9, 2e-4, 3e-4, 3e-4, 1 / 5e9, 0.05))
    shapes = [
        replace(BLOOM, tensor=t, pipeline=p, micro_batch=m, data=384 // (t * p))
        for t in (1, 2, 4, 8)
        for p in (4, 8, 12, 24)
        for m in (1, 2)
    ]
    found = fitted(shapes, [truth.iteration_seconds(shape) for shape in shapes])
    for shape in shapes:
        assert found.iteration_seconds(shape) == pytest.approx(truth.iteration_seconds(shape), rel=0.02)


def test_without_runs_or_with_impossible_ones_fitting_says_what_it_needs():
    with pytest.raises(ValueError, match="as many of both"):
        fitted([], [])
    with pytest.raises(ValueError, match="above 0"):
        fitted([BLOOM], [0.0])


def test_blooms_own_shape_fits_80_gb_and_the_same_without_recomputation_does_not():
    # Published: 48 nodes trained with TP 4, PP 12, DP 8 and micro-batches of 2.
    assert device_bytes(BLOOM) < 80e9
    assert device_bytes(replace(BLOOM, recompute=False, tensor=2, pipeline=24)) > 80e9


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]))
def test_more_replicas_never_take_longer_and_never_more_memory(tensor, pipeline, data):
    few = replace(BLOOM, tensor=tensor, pipeline=pipeline, data=data)
    many = replace(few, data=2 * data)
    # Of the gradient exchange only does more go over the wires.
    gradient = TERMS.index("gradient_bytes")
    less, more = terms(many), terms(few)
    assert all(less[i] <= more[i] for i in range(len(TERMS)) if i != gradient)
    assert device_bytes(many) <= device_bytes(few)


def test_virtual_stages_shrink_the_bubble_and_send_more():
    plain, virtual = BLOOM, replace(BLOOM, virtual=3)
    assert virtual.slots - virtual.num_micro_batches == pytest.approx((plain.slots - plain.num_micro_batches) / 3)
    border = TERMS.index("border_bytes")
    assert terms(virtual)[border] > 2.0 * terms(plain)[border]
    assert np.all(terms(virtual) >= 0.0)
