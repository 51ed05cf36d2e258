"""What a job's frames do not say of its iterations: which passes each worker ran, in which order, and what of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.model import BlockCost, ModelSpec
from evenkeel.layouts.programs.instructions import Op, Program
from evenkeel.layouts.programs.schedules import SCHEDULES, one_f_one_b, program_of


@dataclass(frozen=True, slots=True, kw_only=True)
class JobShape:
    """A job's layout and model.

    Attributes:
        epoch: Epoch of the layout.
        layout: Layout in force.
        model: The model's costs.
    """

    epoch: int
    layout: Layout
    model: ModelSpec

    @property
    def words(self) -> str:
        """How its iterations run."""
        most = max(len(cell) for replica in self.layout.replicas for cell in replica.cells)
        if most > 1:
            return f"the orders of epoch {self.epoch}, up to {most} stages a rank"
        return f"{self.layout.schedule}, the schedule of epoch {self.epoch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How the workers of one replica go through an iteration.

    Attributes:
        cells: Stages of each worker.
        programs: What each runs.
        parts: Of each pass at each stage, its part of what its worker computes in that direction on a micro-batch.
    """

    cells: tuple[tuple[int, ...], ...]
    programs: tuple[Program, ...]
    parts: Mapping[tuple[Op, int], float]


def plain_course(num_stages: int, micro_batches: Sequence[int]) -> Course:
    """1F1B with one stage a worker."""
    return Course(
        cells=tuple([(s,) for s in range(num_stages)]),
        programs=tuple([one_f_one_b(s, num_stages, micro_batches) for s in range(num_stages)]),
        parts={(op, s): 1.0 for op in (Op.FORWARD, Op.BACKWARD) for s in range(num_stages)},
    )


def course_of(shape: JobShape, replica: int) -> Course:
    """What the layout has the workers of a replica do."""
    cells = shape.layout.replicas[replica].cells
    parts: dict[tuple[Op, int], float] = {}
    for cell in cells:
        stages = [shape.layout.replicas[replica].stages[s] for s in cell]
        costs = [_passes(shape.model.blocks[stage.first_block : stage.stop_block]) for stage in stages]
        forwards, backwards = sum([cost[Op.FORWARD] for cost in costs]), sum([cost[Op.BACKWARD] for cost in costs])
        for s, cost in zip(cell, costs, strict=True):
            for op, operations in cost.items():
                parts[op, s] = operations / ((forwards if op is Op.FORWARD else backwards) or 1.0)
    return Course(
        cells=cells, programs=tuple([program_of(shape.layout, replica, cell[0]) for cell in cells]), parts=parts
    )


def obstacle(shape: JobShape) -> str:
    """Why iterations under the layout cannot be taken apart; empty where they can."""
    layout = shape.layout
    if layout.schedule not in SCHEDULES:
        return f"nobody here knows the schedule {layout.schedule!r}; known: {', '.join(sorted(SCHEDULES))}"
    if layout.routes:
        return "replicas run stages of one another's micro-batches; ask when the routes have ended"
    return ""


def has_unlike_depths(shape: JobShape) -> bool:
    """Whether replicas have pipelines of different depths: then none is a measure for another, stage by stage."""
    return len({tuple([cell[0] for cell in one.cells]) for one in shape.layout.replicas if one.num_micro_batches}) > 1


def _passes(blocks: Sequence[BlockCost]) -> dict[Op, float]:
    """Operations of each pass per token; what squared lengths cost is of much the same proportion everywhere."""
    forward = sum([block.forward_flops(1.0, 0.0) for block in blocks])
    backward = sum([block.forward_flops(1.0, 0.0) * block.backward_multiple for block in blocks])
    weights = sum([block.weight_flops(1.0, 0.0) for block in blocks])
    return {
        Op.FORWARD: forward,
        Op.BACKWARD: backward,
        Op.BACKWARD_INPUT: backward - weights,
        Op.BACKWARD_WEIGHT: weights,
    }
