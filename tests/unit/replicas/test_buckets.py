"""Gradients leave in the backward itself, unless they are about to come twice."""

from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor, nn, ones

from evenkeel.trainer_sdk.groups.errors import WaitBroken
from evenkeel.trainer_sdk.replicas.buckets import Buckets


class Exchange:
    """A group of one that counts what has left."""

    def __init__(self) -> None:
        self.num_left = 0

    def start_all_reduce(self, tensor: Tensor) -> Any:
        self.num_left += 1
        return SimpleNamespace(wait=lambda: None)


def left_early(model: nn.Module, buckets: Buckets, num_backwards: int) -> bool:
    """A step of one micro-batch: whether all left in its backward. One that has to be exchanged anew is."""
    group = Exchange()
    buckets.enter(group)  # type: ignore[arg-type]
    buckets.open()
    buckets.arm()
    for _ in range(num_backwards):
        model(ones(2, 3)).sum().backward()
    is_early = group.num_left == 1
    try:
        buckets.flush()
    except WaitBroken:
        buckets.abandon()
        buckets.enter(group)  # type: ignore[arg-type]
        buckets.flush()
    buckets.wait()
    return is_early


def test_gradients_that_came_twice_leave_early_again_when_they_come_once() -> None:
    model = nn.Linear(3, 3)
    buckets = Buckets(list(model.parameters()))
    early = [left_early(model, buckets, 2 if step in (1, 5) else 1) for step in range(10)]
    assert early == [True, True, False, True, True, True, False, False, True, True]


def test_gradients_that_always_come_twice_are_exchanged_anew_once() -> None:
    model = nn.Linear(3, 3)
    buckets = Buckets(list(model.parameters()))
    assert [left_early(model, buckets, 2) for _ in range(20)] == [True] + [False] * 19


def test_gradients_that_the_loop_changes_are_no_sums() -> None:
    model = nn.Linear(3, 3)
    buckets = Buckets(list(model.parameters()))
    left_early(model, buckets, 2)
    buckets.check_sums()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    with pytest.raises(RuntimeError, match="were changed: zero, clip and unscale them after the loop"):
        buckets.check_sums()
