"""What a job may ask of the engine: what it cannot do is refused by name, before anything is trained with it."""

from typing import Any

import pytest

from evenkeel.trainer_sdk.elastic.config import config_from_json

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"dtype": "bfloat16"}, "config.dtype: expected one of float32, float64, found 'bfloat16'"),
    ({"amp": True}, "config: unknown amp; known here: "),
    ({"model": {"dropout": 0.1}}, "config.model: unknown dropout"),
    ({"model": {"tied_embeddings": True}}, "config.model: unknown tied_embeddings"),
    ({"model": {"num_heads": 0}}, r"model.num_heads: expected a whole number \(at least 1, .*\), found 0"),
    ({"model": {"vocabulary": 128}}, r"model.vocabulary: expected a whole number \(at least 256, .*\), found 128"),
    ({"workload": {"num_micro_batches": 0}}, "workload.num_micro_batches: .*, found 0"),
    ({"optimizer": {"lr": 0.1}}, "config.optimizer: unknown lr"),
    ({"optimizer": {"learning_rate": "0.003"}}, "optimizer.learning_rate: .*, found '0.003'"),
    ({"optimizer": {"warm_up_iterations": 2.5}}, "optimizer.warm_up_iterations: .*, found 2.5"),
    ({"optimizer": {"beta2": 1}}, "optimizer.beta2: .*less than 1.*, found 1"),
    ({"optimizer": {"epsilon": 0.0}}, "optimizer.epsilon: expected a number .more than 0, .*, found 0.0"),
    ({"optimizer": {"max_gradient_norm": -1.0}}, "optimizer.max_gradient_norm: .*, found -1.0"),
    ({"optimizer": {"max_gradient_norm": 0}}, r"more than 0, .*\) or null, found 0"),
    ({"optimizer": {"max_gradient_norm": True}}, "optimizer.max_gradient_norm: .*, found True"),
    ({"num_iterations": 2.5}, "num_iterations: .*, found 2.5"),
    ({"workload": {"long_stretches": [[1, 2, 3]]}}, "long_stretches.0.: expected a list"),
    ({"checkpoint": {"keep": 0}}, "checkpoint.keep: .*, found 0"),
    ({"seed": -1}, "seed: .*, found -1"),
]


@pytest.mark.parametrize(("values", "message"), REFUSED, ids=[str(values) for values, _ in REFUSED])
def test_what_the_engine_cannot_do_is_refused_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_from_json(values)


def test_whole_numbers_will_do_where_fractions_may_stand() -> None:
    config = config_from_json({"optimizer": {"max_gradient_norm": 1, "weight_decay": 0}, "num_iterations": 0})
    assert config.optimizer.max_gradient_norm == 1


def test_a_whole_number_that_is_written_as_a_fraction_is_one() -> None:
    assert repr(config_from_json({"num_iterations": 3.0}).num_iterations) == "3"
