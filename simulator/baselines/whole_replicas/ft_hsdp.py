"""FT-HSDP: replicas of thousands of devices, of which one leaves with any of its devices.

Source: arXiv 2602.00277, by two independent summaries. About a dozen HSDP replicas; inside a replica tensor, pipeline
and fully sharded data parallelism that cannot lose anybody; across replicas only the gradient exchange. A death costs
a stall of all (60 s collective timeout, reconfiguration, the failed step of about 20 s once more, two bugs of 45 s
each: about 3 min, "target 1.5 min"); then the others go on with a smaller batch. A replica that is back fetches its
state without stopping anybody. Deviations: an HSDP replica is a row of the home layout's replicas that leave together;
a death costs what a change costs everybody unless the published stall is asked for, and so does the stall at the return
(published: 100 to 120 s), which is zero in the published estimate of 80 %; slow devices are not acted upon, as there.
"""

from itertools import pairwise

from evenkeel.simulator.baselines._cells import on_replicas, whole_replicas
from evenkeel.simulator.fleet.strategy import Answer, Question

NUM_REPLICAS = 12
STALL_SECONDS = 180.0
REJOIN_SECONDS = 110.0
"""Published stall when a replica comes back: 100 to 120 s."""


class FtHsdp:
    """Whole HSDP replicas go on, with a smaller batch.

    Args:
        stall_seconds: Of everybody, for each death, the failed step included; None = what changing the groups costs
            every system here, and the failed step.
        rejoin_seconds: Of everybody, for each return.
    """

    name = "FT-HSDP"

    def __init__(self, stall_seconds: float | None = None, rejoin_seconds: float = 0.0) -> None:
        self._stall_seconds, self._rejoin_seconds = stall_seconds, rejoin_seconds

    def answer(self, question: Question) -> Answer:
        """The home layout's replicas whose HSDP replica is whole, with their home quotas."""
        home = question.home
        whole = set(whole_replicas(home, question.throughputs))
        kept = [d for row in _rows(len(home.replicas)) if whole.issuperset(row) for d in row]
        if not kept:
            return Answer(operation=None)
        operation = on_replicas(home, kept, keeps_batch=False)
        current = question.current
        if current is not None and operation.replicas == current.replicas:
            return Answer(operation=current)
        if current is None:
            pause = question.costs.restart_seconds
        else:
            stall = question.costs.transition.group_seconds if self._stall_seconds is None else self._stall_seconds
            pause = self._rejoin_seconds if current.ranks <= operation.ranks else stall
        return Answer(operation=operation, pause_seconds=pause, reruns_iteration=self._stall_seconds is None)


def _rows(count: int) -> list[range]:
    """The home layout's replicas, dealt to HSDP replicas in order."""
    num_rows = min(NUM_REPLICAS, count)
    return [range(*each) for each in pairwise([count * row // num_rows for row in range(num_rows + 1)])]
