"""Greyhound (FALCON): ski rental over four strategies against slow devices.

Source: ATC'25 and its public code. S1 ignore; S2 integer micro-batch quotas by speed; S3 topology change, in the code a
resize of stage layers; S4 checkpoint and restart without the slow nodes. The next one is used when the time that was
lost to the slowdown equals what the next one costs. Deviations: S2's integer program is solved exactly by exchange;
S3 resizes layers by estimated speed, the same in every replica, at the code's fixed 60 s; S4 leaves out the replicas
that hold a slow or dead device (there are no spares) and is only taken when that is faster. Widths of tensor groups are
never changed. Dead devices: checkpoint and restart, as it has nothing else.
"""

from evenkeel.simulator.baselines._cells import (
    balanced_quotas,
    equal_stage,
    on_replicas,
    proportional_borders,
    whole_replicas,
)
from evenkeel.simulator.fleet.cost.transition import rollback_seconds
from evenkeel.simulator.fleet.operation.operation import Grid, Operation, operation_seconds
from evenkeel.simulator.fleet.strategy import Answer, Question

RESIZE_SECONDS = 60.0


class Greyhound:
    """S1 to S4 by ski rental."""

    name = "Greyhound"

    def answer(self, question: Question) -> Answer:
        """The strategy that the time lost so far has paid for."""
        home, cost, throughputs = question.home, question.cost, question.throughputs
        kept = whole_replicas(home, throughputs)
        if not kept:
            return Answer(operation=None)
        base = on_replicas(home, kept)
        restarts = question.current is None or question.current_is_dead
        restart = rollback_seconds(question.at_seconds, question.costs)
        if question.slow_since_seconds is None:
            return Answer(operation=base, pause_seconds=restart if restarts or base != question.current else 0.0)
        lost = question.at_seconds - question.slow_since_seconds
        healthy = operation_seconds(cost, base, dict.fromkeys(throughputs, 1.0))
        second = Operation(replicas=base.replicas, quotas=balanced_quotas(question, base.replicas, base.quotas))
        best, pause, waits = second, restart if restarts else 0.0, None
        now = operation_seconds(cost, second, throughputs)
        for candidate, price in ((self._resized(question, second), RESIZE_SECONDS), (self._without(question), restart)):
            if candidate is None:
                continue
            seconds = operation_seconds(cost, candidate, throughputs)
            if seconds >= now * 0.99:
                continue
            loss_rate = max(1e-9, 1.0 - healthy / now)
            if candidate != question.current and lost * loss_rate < price:
                waits = (price - lost * loss_rate) / loss_rate
                break
            best, now = candidate, seconds
            pause = price if candidate != question.current else 0.0
        return Answer(operation=best, pause_seconds=pause, ask_again_seconds=waits)

    def _resized(self, question: Question, base: Operation) -> Operation | None:
        """S3: one split for all replicas, by the slowest cell of each stage."""
        num_stages = len(question.home.replicas[0].stages)
        if num_stages == 1:
            return None
        speeds = [
            min(
                min(question.throughputs[rank] for rank in stage.ranks)
                for replica in base.replicas
                if (stage := replica[s])
            )
            for s in range(num_stages)
        ]
        borders = proportional_borders(question.home.num_blocks, speeds)
        grid: Grid = tuple(
            tuple(equal_stage(borders[s], borders[s + 1], stage.ranks) for s, stage in enumerate(replica) if stage)
            for replica in base.replicas
        )
        return Operation(replicas=grid, quotas=balanced_quotas(question, grid, base.quotas))

    def _without(self, question: Question) -> Operation | None:
        """S4: replicas without slow or dead devices."""
        healthy = {rank: p for rank, p in question.throughputs.items() if p >= 1.0}
        kept = whole_replicas(question.home, healthy)
        return on_replicas(question.home, kept) if kept else None
