"""What a stage does, in order: the language between planners, which write it, and the engine, which interprets it."""

from dataclasses import dataclass
from enum import StrEnum


class Op(StrEnum):
    """Kinds of instructions. Transfers name the micro-batch whose activation (or its gradient) crosses the border."""

    RECEIVE_ACTIVATION = "receive_activation"
    FORWARD = "forward"
    SEND_ACTIVATION = "send_activation"
    RECEIVE_GRADIENT = "receive_gradient"
    BACKWARD = "backward"
    BACKWARD_INPUT = "backward_input"
    BACKWARD_WEIGHT = "backward_weight"
    SEND_GRADIENT = "send_gradient"
    REDUCE = "reduce"
    STEP = "step"


BACKWARD_PART = {Op.BACKWARD: 1.0, Op.BACKWARD_INPUT: 0.5, Op.BACKWARD_WEIGHT: 0.5}
"""Part of a micro-batch's backward that an instruction does, for whoever knows no more than the whole: products with
weights, which are nearly all of it, have a gradient of each factor."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of one stage of one replica.

    Attributes:
        op: What to do. BACKWARD is BACKWARD_INPUT and BACKWARD_WEIGHT in one.
        micro_batch: Index within the iteration's global batch; -1 for REDUCE and STEP.
        stage: Stage that does it; REDUCE and STEP are the ranks' and of no stage.
    """

    op: Op
    micro_batch: int = -1
    stage: int = 0


Program = tuple[Instruction, ...]
"""The instructions of one stage of one replica for one iteration, or of all stages that the same ranks hold."""
