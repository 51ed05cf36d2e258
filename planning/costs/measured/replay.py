"""Recent iterations as they would have gone under a layout: the longest path with their actual micro-batches.

The search for layouts takes micro-batches to be alike. Real ones are not: a replica that happens to get larger ones is
late, and a pipeline stalls behind its largest. How much that costs hangs on the layout (a replica that is ahead anyway
absorbs it), so what is told of a layout, and what it is measured against, is a replay: the programs of each recent
iteration are played with the seconds of its own micro-batches, all iterations and alike replicas at once, as arrays.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.programs.execution import Receiver, cell_receiver, times
from evenkeel.layouts.programs.instructions import Instruction, Op, Program
from evenkeel.layouts.programs.paths import Paths
from evenkeel.layouts.programs.routed_stages import routed_stages
from evenkeel.layouts.programs.schedules import stage_programs
from evenkeel.layouts.sizes.mix import Mix
from evenkeel.planning.costs.cost_model import CostModel
from evenkeel.planning.pipelined.routed import sizes_of
from evenkeel.planning.pipelined.virtual import programs_of

Floats = npt.NDArray[np.float64]


class Replay:
    """A job's recent iterations, to be played under layouts; where none are known, one whose micro-batches are alike.

    Args:
        cost: What stages take; its workload says which iterations were recent, all of as many micro-batches.
        mix: The mix under which they ran.
    """

    def __init__(self, cost: CostModel, mix: Mix | None = None) -> None:
        self._cost, self._mix = cost, mix

    def seconds(self, layout: Layout, throughputs: Mapping[int, float]) -> float:
        """Mean seconds of the recent iterations under a layout, corrected as predictions are.

        Raises:
            ValueError: The layout has another number of micro-batches, or a dead rank.
        """
        return float(self.each(layout, throughputs).mean())

    def each(self, layout: Layout, throughputs: Mapping[int, float]) -> Floats:
        """The same of each recent iteration.

        Raises:
            ValueError: The layout has another number of micro-batches, or a dead rank.
        """
        exchanged = self._cost.gradients.seconds([replica.stages for replica in layout.replicas])
        return np.array([self._cost.total(each, exchanged) for each in self.slowest(layout, throughputs).tolist()])

    def usual_ratio(self, layout: Layout, throughputs: Mapping[int, float]) -> float:
        """Measured over replayed seconds of the recent iterations: the median, as a pause or two says nothing of it.

        Args:
            layout: Layout under which they ran.
            throughputs: Of its ranks.
        """
        measured = np.array([one.wall_seconds for one in self._cost.workload.recent])
        return float(np.median(measured / self.each(layout, throughputs)))

    def slowest(self, layout: Layout, throughputs: Mapping[int, float]) -> Floats:
        """Seconds of the slowest replica's pipeline in each recent iteration; no fixed part, no correction.

        Raises:
            ValueError: The layout has another number of micro-batches, or a dead rank.
        """
        tokens, squares = self._sizes(layout)
        if layout.routes:
            return self._routed(layout, throughputs, tokens, squares)
        groups: dict[tuple[object, ...], list[int]] = {}
        for d, replica in enumerate(layout.replicas):
            if replica.num_micro_batches:
                groups.setdefault((replica.cells, replica.num_micro_batches, replica.orders), []).append(d)
        firsts = list(accumulate([replica.num_micro_batches for replica in layout.replicas], initial=0))
        slowest: Floats = np.zeros(len(tokens))
        for alike in groups.values():
            one = layout.replicas[alike[0]]
            quota, num_stages = one.num_micro_batches, len(one.stages)
            columns = np.array([firsts[d] for d in alike]) + np.arange(quota)[:, None]
            sizes = tokens[:, columns], squares[:, columns]  # each (iterations, micro-batches, replicas)
            of_stages = [[layout.replicas[d].stages[s] for d in alike] for s in range(num_stages)]
            rates = [np.array([self._cost.rates(each, throughputs) for each in stages]).T for stages in of_stages]
            plain = stage_programs(layout.schedule, num_stages, quota)
            programs = programs_of(one.orders, one.cells, quota) if one.orders else plain
            slowest = np.maximum(slowest, self._ends(programs, rates, sizes, cell_receiver(one.cells)).max(axis=1))
        return slowest

    def _sizes(self, layout: Layout) -> tuple[Floats, Floats]:
        """[iterations, micro-batches] tokens and squared lengths under a layout."""
        workload = self._cost.workload
        if not workload.recent:
            quotas = [replica.num_micro_batches for replica in layout.replicas]
            alike: Floats = np.repeat(sizes_of(layout), quotas)[None]
            return alike * workload.tokens, alike * workload.sum_of_squares
        tokens = np.array([one.tokens for one in workload.recent], dtype=np.float64)
        squares = np.array([one.sums_of_squares for one in workload.recent], dtype=np.float64)
        if tokens.shape[1] != layout.num_micro_batches:
            raise ValueError(
                f"recent iterations had {tokens.shape[1]} micro-batches, the layout has {layout.num_micro_batches}"
            )
        if layout.mix is not None and self._mix is not None and layout.mix != self._mix:
            scale = np.array(layout.mix.targets()) / np.array(self._mix.targets())
            return tokens * scale, squares * scale
        return tokens, squares

    def _ends(
        self, programs: Sequence[Program], rates: Sequence[Floats], sizes: tuple[Floats, Floats], receiver_of: Receiver
    ) -> Floats:
        """When pipelines end, by iteration and replica; ``rates[stage]`` are those of the replicas, one a column."""

        def seconds_of(_: int, instruction: Instruction) -> float:
            return _seconds(rates[instruction.stage], instruction, sizes)  # type: ignore[return-value]

        transfer = self._cost.workload.transfer_seconds
        stages = times(programs, seconds_of, transfer, receiver_of, later=np.maximum)
        ends: Floats = np.maximum.reduce([stage.end_seconds for stage in stages])
        return ends

    def _routed(self, layout: Layout, throughputs: Mapping[int, float], tokens: Floats, squares: Floats) -> Floats:
        """Replicas that run stages of one another's micro-batches are played together."""
        rates = {
            (d, s): self._cost.rates(stage, throughputs)
            for d, replica in enumerate(layout.replicas)
            for s, stage in enumerate(replica.stages)
        }
        stages = routed_stages(
            layout,
            Paths(layout),
            range(len(layout.replicas)),
            lambda d, s, instruction: _seconds(rates[d, s], instruction, (tokens, squares)),  # type: ignore[arg-type, return-value]
            self._cost.workload.transfer_seconds,
            later=np.maximum,
        )
        ends: Floats = np.maximum.reduce(
            np.broadcast_arrays(*[stage.end_seconds for replica in stages for stage in replica])
        )
        return ends


def _seconds(rates: Floats, instruction: Instruction, sizes: tuple[Floats, Floats]) -> Floats:
    """Seconds of an operation by iteration, and by replica where these are told apart.

    Args:
        rates: As :meth:`CostModel.rates` tells them.
        instruction: The operation.
        sizes: Tokens and squared lengths by iteration and micro-batch.
    """
    forward, forward_square, backward, square, weight = rates
    op, tokens, squares = instruction.op, sizes[0][:, instruction.micro_batch], sizes[1][:, instruction.micro_batch]
    if op is Op.FORWARD:
        seconds: Floats = tokens * forward + squares * forward_square
    elif op is Op.BACKWARD_WEIGHT:
        seconds = tokens * weight
    else:
        seconds = tokens * (backward if op is Op.BACKWARD else backward - weight) + squares * square
    return seconds
