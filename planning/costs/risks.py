"""Structural risks of layouts: what they may cost that the cost model does not see, and how a plan allows for it.

A replica less costs redundancy, a merged stage and a split backward memory where its limit is not known, a stage wider
than the full shape's collectives. When everybody is healthy, anything but the full shape is a risk: that was chosen
with reasons that the model does not know.
"""

from evenkeel.layouts.layout import Layout, Replica, Stage
from evenkeel.layouts.programs.schedules import SPLIT_BACKWARD
from evenkeel.planning.costs.memory import activation_peak, most_held
from evenkeel.planning.situation import Situation

RISK_MARGIN = 0.04
"""Relative gain that a structural risk must bring; a guess until memory and collectives are modelled."""

_MOST_FILLED = 1.25


def judged_seconds(situation: Situation, layout: Layout) -> float:
    """Wary seconds per iteration, plus a margin for each structural risk that the cost model does not see.

    A risk must be faster by the margin to be preferred, a stage wider than the full shape's also by what
    :class:`UsualShape` takes it to be slower.

    Args:
        situation: The question.
        layout: Of live ranks.
    """
    is_wary = situation.cost.usual is not None or not has_wide_stage(situation, layout)
    seconds = (situation if is_wary else situation.wary).seconds(layout)
    return seconds * (1.0 + RISK_MARGIN * num_risks(situation, layout))


def num_risks(situation: Situation, layout: Layout) -> int:
    """How many structural risks a layout takes."""
    home, full_width = situation.home, situation.full_width
    num_stages = len(home.replicas[0].stages)
    risks = max(0, len(home.replicas) - len(layout.replicas))
    if situation.device_bytes is None:
        risks += split_risks(situation, layout.schedule)
        risks += bool(layout.routes) and most_held(layout) > num_stages
        if situation.may_have_orders and situation.with_orders is None:
            risks += any(holds_more(situation, replica) for replica in layout.replicas)
    shape = situation.with_orders or home
    risks += situation.all_is_well and (layout.replicas != shape.replicas or bool(layout.routes))
    for replica in layout.replicas:
        if situation.device_bytes is None:
            risks += max(0, num_stages - len(replica.stages))
        risks += sum([len(stage.ranks) > full_width for stage in replica.stages])
    return risks


def split_risks(situation: Situation, schedule: str) -> int:
    """How many structural risks a schedule takes: 1 for a split backward that the full shape has not, or 0."""
    is_split = schedule in SPLIT_BACKWARD and situation.home.schedule not in SPLIT_BACKWARD
    return int(is_split and situation.device_bytes is None)


def has_wide_stage(situation: Situation, layout: Layout) -> bool:
    """Whether a stage of a layout is wider than any of the full shape's."""
    full_width = situation.full_width
    return any(len(stage.ranks) > full_width for replica in layout.replicas for stage in replica.stages)


def holds_more(situation: Situation, replica: Replica) -> bool:
    """Whether ranks of a replica with orders hold more activations at a time than any of the full shape's."""
    if not replica.orders:
        return False
    return activation_peak(situation.cost.model, replica) > situation.home_activations * (1.0 + 1e-9)


def crowding(situation: Situation, stages: tuple[Stage, ...]) -> float:
    """How far stages fill some device beyond what a plan may do of its own accord, in blocks; 0 where memory is known.

    That is a little more than the full shape does. Devices that fill because others died are another matter.
    """
    if situation.device_bytes is not None:
        return 0.0
    return max(0.0, max(map(_blocks_on_fullest, stages)) - most_blocks(situation))


def most_blocks(situation: Situation) -> float:
    """Blocks that a plan may give a device of its own accord where memory is not known."""
    fullest = max(map(_blocks_on_fullest, situation.home.replicas[0].stages))
    return _MOST_FILLED * fullest


def _blocks_on_fullest(stage: Stage) -> float:
    return stage.num_blocks * max(stage.shares) / sum(stage.shares)
