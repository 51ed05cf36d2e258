"""What a job may ask of the engine: what it cannot do is refused by name, before anything is trained with it."""

from typing import Any

import pytest

from evenkeel.trainer_sdk.elastic.config import config_from_json

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"dtype": "bfloat16"}, "use float32 or float64"),
    ({"amp": True}, "'amp'"),
    ({"model": {"dropout": 0.1}}, "'dropout'"),
    ({"model": {"tied_embeddings": True}}, "'tied_embeddings'"),
    ({"model": {"num_heads": 0}}, "model.num_heads is 0"),
    ({"model": {"vocabulary": 128}}, "model.vocabulary is 128: use a whole number of 256 or more"),
    ({"workload": {"num_micro_batches": 0}}, "workload.num_micro_batches is 0"),
    ({"optimizer": {"lr": 0.1}}, "'lr'"),
    ({"optimizer": {"learning_rate": "0.003"}}, "optimizer.learning_rate is '0.003'"),
    ({"optimizer": {"warm_up_iterations": 2.5}}, "optimizer.warm_up_iterations is 2.5"),
    ({"optimizer": {"beta2": 1}}, "optimizer.beta2 is 1"),
    ({"optimizer": {"epsilon": 0.0}}, "optimizer.epsilon is 0.0: use a number above 0"),
    ({"optimizer": {"max_gradient_norm": -1.0}}, "optimizer.max_gradient_norm is -1.0"),
    ({"optimizer": {"max_gradient_norm": 0}}, "above 0, or leave it out"),
    ({"optimizer": {"max_gradient_norm": True}}, "optimizer.max_gradient_norm is True"),
    ({"num_iterations": 2.5}, "num_iterations is 2.5"),
    ({"seed": -1}, "seed is -1"),
]


@pytest.mark.parametrize(("values", "message"), REFUSED, ids=[str(values) for values, _ in REFUSED])
def test_what_the_engine_cannot_do_is_refused_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_from_json(values)


def test_whole_numbers_will_do_where_fractions_may_stand() -> None:
    config = config_from_json({"optimizer": {"max_gradient_norm": 1, "weight_decay": 0}, "num_iterations": 0})
    assert config.optimizer.max_gradient_norm == 1
