"""The regressor is a river estimator, stays finite, forgets, and knows what it cannot know."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from river import checks

from evenkeel.services.detector.domain.expectation.forgetting_least_squares import ForgettingLeastSquares
from evenkeel.services.detector.domain.expectation.workload import WorkExpectation


def test_it_passes_rivers_own_checks_for_estimators() -> None:
    checks.check_estimator(ForgettingLeastSquares())


def test_it_finds_the_coefficients_whatever_the_units() -> None:
    rng = np.random.default_rng(1)
    model = ForgettingLeastSquares(ridge=1e-8)
    for _ in range(300):
        x = {"flops": 1e12 * rng.uniform(1, 2), "share": 1e-6 * rng.uniform(1, 2)}
        model.learn_one(x, 3e-12 * x["flops"] + 2e6 * x["share"])
    assert model.predict_one({"flops": 1e12, "share": 1e-6}) == pytest.approx(5.0, rel=1e-4)


def test_a_reluctant_feature_is_never_worth_less_than_nothing() -> None:
    model, plain = (ForgettingLeastSquares(ridge=1e-3, primary="flops", reluctant=name) for name in ("calls", ""))
    for i in range(100):
        x = {"flops": 8.0 + i % 2, "calls": 4.0}
        for one in (model, plain):
            one.learn_one(x, 8.0 if i % 2 == 0 else 9.4)  # the larger share is dearer by more than its size
    near = {"flops": 5.0, "calls": 4.0}
    assert model.predict_one(near) == pytest.approx(5.0, rel=0.05)
    assert plain.predict_one(near) < 4.5


def test_features_that_cannot_be_told_apart_are_put_down_to_the_primary_one() -> None:
    model = ForgettingLeastSquares(ridge=1e-3, primary="flops")
    for _ in range(100):
        model.learn_one({"flops": 8.0, "micro_batches": 4.0}, 16.0)
    assert model.predict_one({"flops": 4.0, "micro_batches": 4.0}) == pytest.approx(8.0, rel=1e-3)


def test_it_follows_a_change_of_the_coefficients() -> None:
    model = ForgettingLeastSquares(forgetting=0.95)
    for step in range(400):
        model.learn_one({"x": 1.0 + step % 3}, (2.0 if step < 200 else 5.0) * (1.0 + step % 3))
    assert model.predict_one({"x": 1.0}) == pytest.approx(5.0, rel=1e-2)


@pytest.mark.parametrize("forgetting", [0.9, 0.99])
def test_it_stays_finite_on_long_streams_with_directions_that_stop_showing(forgetting: float) -> None:
    rng = np.random.default_rng(2)
    model = ForgettingLeastSquares(forgetting=forgetting)
    names = ("a", "b", "copy of b", "rare")
    for step in range(8_000):
        varied = rng.uniform(1, 2) if step % 4_000 < 800 else 1.0
        rare = 1e9 if step % 3_999 == 0 else 0.0
        row = np.array([[1.0, varied, varied, rare]])
        model.learn_rows(names, row, np.array([2.0 + varied]))
    predicted = model.predict_one({"a": 1.0, "b": 1.5, "copy of b": 1.5, "rare": 0.0})
    assert np.isfinite(predicted)
    assert predicted == pytest.approx(3.5, rel=0.2)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1e12), st.floats(0, 1e12), st.floats(0, 1e12)), min_size=1, max_size=40))
def test_no_input_makes_it_go_non_finite(rows: list[tuple[float, float, float]]) -> None:
    model = ForgettingLeastSquares(forgetting=0.9)
    for first, second, target in rows:
        model.learn_one({"first": first, "second": second}, target)
        assert np.isfinite(model.predict_one({"first": 1.0, "second": 1.0}))


def test_its_doubt_is_small_within_the_data_and_as_large_as_its_errors_beyond() -> None:
    random, names = np.random.default_rng(5), ("tokens", "constant")
    model = ForgettingLeastSquares(forgetting=1.0, ridge=1e-3, primary="tokens")
    rows = np.column_stack([random.uniform(0.9, 1.1, 200), np.ones(200)])
    for row in rows:
        model.learn_rows(names, row[None, :], np.array([0.5 * row[0] + 0.5 + 0.01 * random.standard_normal()]))
    within, beyond = np.array([1.05, 1.0]), np.array([2.0, 1.0])
    assert model.doubt(names, within, noise=0.01, believed=1.0) < 0.02
    doubt = model.doubt(names, beyond, noise=0.01, believed=1.0)
    assert abs(float(model.predict_rows(names, beyond[None, :])[0]) - 1.5) < doubt < 1.0
    for _ in range(20):
        model.learn_rows(names, beyond[None, :], np.array([1.5]))
    assert model.doubt(names, beyond, noise=0.01, believed=1.0) < 0.03


def test_a_feature_that_was_never_there_leaves_it_in_doubt() -> None:
    model = ForgettingLeastSquares()
    model.learn_rows(("tokens", "squares"), np.array([[1.0, 0.0]]), np.array([1.0]))
    assert np.isfinite(model.doubt(("tokens", "squares"), np.array([1.0, 0.0]), noise=0.01, believed=1.0))
    assert model.doubt(("tokens", "squares"), np.array([1.0, 2.0]), noise=0.01, believed=1.0) == np.inf
    assert model.doubt(("tokens",), np.array([1.0]), noise=0.01, believed=1.0) == np.inf


@pytest.mark.parametrize("place", [0, 1, 2])
def test_where_a_reluctant_feature_would_be_below_nothing_the_others_are_as_without_it(place: int) -> None:
    rng = np.random.default_rng(5)
    rows = rng.uniform(1, 2, (60, 2))
    calls = rng.uniform(1, 2, 60)
    targets = rows @ (3.0, 2.0) - calls
    names, columns = ["flops", "squares"], [*rows.T]
    names.insert(place, "calls")
    columns.insert(place, calls)
    with_it, without = (ForgettingLeastSquares(primary="flops", reluctant="calls", ridge=1e-6) for _ in range(2))
    with_it.learn_rows(names, np.array(columns).T, targets)
    without.learn_rows(("flops", "squares"), rows, targets)
    assert with_it.predict_one({"calls": 1.0}) == 0.0
    for name in ("flops", "squares"):
        assert with_it.predict_one({name: 1.0}) == pytest.approx(without.predict_one({name: 1.0}), rel=1e-9)


def test_a_pause_of_all_is_no_price_of_work_and_what_lasts_is() -> None:
    rng, expectation = np.random.default_rng(2), WorkExpectation()

    def learn(factor: float) -> float:
        """One frame of eight ranks; how far off the price of a short and of a long document is, log units."""
        squares = rng.uniform(0.5, 1.5, 8)
        work = np.column_stack([4 + squares, squares, np.full(8, 4.0)])
        seconds = factor * (work[:, 0] + 0.5 * squares)
        if not expectation.has_learned:
            expectation.learn(work, seconds, seconds)
            return 0.0
        off = np.log(seconds / expectation.expect(work))
        expectation.learn(work, seconds, expectation.expect(work), common=float(np.median(off)))
        return float(np.log(expectation.expect(np.array([[4.0, 0, 4], [6.0, 2, 4]])) / (4.0, 7.0)).max())

    for _ in range(8):
        learn(1.0)
    assert learn(2.7) < 0.04
    assert 0.3 < [learn(1.6) for _ in range(21)][-1] < np.log(1.6)
