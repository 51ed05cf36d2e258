"""Stages of micro-batches that another replica runs.

A slow stage can so be relieved by a part of its own work, and by no other stage's (as ReCycle, arXiv 2405.14009, does
for dead ones and ResiHP, arXiv 2605.06374, for slow ones). Activations go from the stage before, at home, to the host
and from there to the stage after; gradients take the same way back. The host has the same blocks, so its gradient sums
take the guest in, and the exchange between replicas counts it once as ever.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Route:
    """One stage of one micro-batch, forward and backward, on the same stage of another replica.

    Attributes:
        micro_batch: Index within the iteration's global batch; its other stages stay at home.
        stage: Stage; home and host have the same blocks there.
        replica: Host: not the replica whose quota the micro-batch belongs to.
    """

    micro_batch: int
    stage: int
    replica: int
