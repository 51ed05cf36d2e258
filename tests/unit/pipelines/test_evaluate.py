from dataclasses import replace

import pytest

from evenkeel.layouts.programs.instructions import Op
from evenkeel.layouts.programs.orders import Turn
from evenkeel.pipelines.case import Backward, Case, Layer
from evenkeel.pipelines.case_file import case_from_json
from evenkeel.pipelines.evaluate import evaluate
from evenkeel.pipelines.schedules.gpipe import gpipe
from evenkeel.pipelines.schedules.one_stage import one_stage_each
from evenkeel.pipelines.schedules.zb_v import zb_v
from tests.unit.pipelines.documents import documents

LAYER = Layer(forward=2, backward_input=3, backward_weight=1)
DOCUMENT = {
    "name": "c",
    "devices": 2,
    "micro_batches": 4,
    "layers": [{"forward": 2, "backward_input": 3, "backward_weight": 1}] * 4,
}


def case(**changes: object) -> Case:
    return replace(Case(name="c", devices=2, micro_batches=4, layers=(LAYER,) * 4), **changes)  # type: ignore[arg-type]


def test_a_slower_device_takes_longer_in_proportion() -> None:
    half = case(speeds=(1.0, 0.5))
    evaluation = evaluate(half, one_stage_each(half, "1f1b"))
    assert evaluation.busy == (48, 96)


def test_work_that_is_left_out_is_refused() -> None:
    plan = gpipe(case())
    with pytest.raises(ValueError, match="has forward for micro-batch 3 of stage 1"):
        evaluate(case(), replace(plan, orders=(plan.orders[0], plan.orders[1][:-1])))


def test_work_that_is_done_twice_is_refused() -> None:
    plan = gpipe(case())
    with pytest.raises(ValueError, match="for micro-batch 3 of stage 1"):
        evaluate(case(), replace(plan, orders=(plan.orders[0], plan.orders[1] + plan.orders[1][-1:])))


def test_an_order_that_waits_for_ever_is_refused() -> None:
    plan = gpipe(case())
    with pytest.raises(ValueError, match="waits for ever"):
        evaluate(case(), replace(plan, orders=(tuple(reversed(plan.orders[0])), plan.orders[1])))


def test_more_activation_than_the_limit_is_refused() -> None:
    tight = case(memory_limit=4)
    assert max(evaluate(tight, one_stage_each(tight, "1f1b")).peak_activation) == 4
    with pytest.raises(ValueError, match="more than the limit"):
        evaluate(tight, gpipe(tight))


def test_a_fused_case_takes_no_split_backward() -> None:
    with pytest.raises(ValueError, match="the case has it fused"):
        evaluate(case(backward=Backward.FUSED), zb_v(case()))


def test_an_operation_on_the_wrong_device_is_refused() -> None:
    plan = gpipe(case())
    moved = (*plan.orders[1], Turn(Op.FORWARD, 0, 0))
    with pytest.raises(ValueError, match="order of cell 1 has, against the layout, micro-batch 0 of stage 0"):
        evaluate(case(), replace(plan, orders=(plan.orders[0], moved)))


@pytest.mark.parametrize("name", ["simpipe", "slackpipe", "tiny_optimum", "classical"])
def test_every_recorded_case_is_read(name: str) -> None:
    for each in documents(name):
        read = case_from_json(each)
        assert (read.devices, read.micro_batches) == (each["devices"], each["micro_batches"])
        assert [layer.forward for layer in read.layers] == [layer["forward"] for layer in each["layers"]]


def test_a_document_is_the_case_that_it_says() -> None:
    assert case_from_json(DOCUMENT) == case()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"devices": None}, "devices: expected a whole number .*, found None"),
        ({"layers": [{"forward": 1}]}, r"layers\[0\]: missing backward_input"),
        ({"backward": "sideways"}, "sideways"),
        ({"device_speeds": [1, 0]}, "leave a dead device out"),
        ({"memory": {"limit": 1}}, "raise the limit"),
        ({"constraints": {"stages": 9}}, "there are 4 layers"),
        ({"micro_batches": 10**9}, "too many: at most"),
        ({"devices": 10**9}, "too many: at most"),
    ],
)
def test_a_bad_case_is_refused_with_what_to_do(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        case_from_json({**DOCUMENT, **changes})
