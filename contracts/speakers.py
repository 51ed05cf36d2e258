"""Who speaks under rank -1: programs that tell of a job's processes and are none of its ranks.

Records are told apart, numbered and counted by (rank, incarnation), so each of them has an incarnation of its own.
"""

NO_RANK = -1
"""The rank of a record that comes from no rank."""

LAUNCHER_INCARNATION = 0
"""Of the launcher, which speaks for the ranks that it started; those of further hosts count up from it."""

SCHEDULER_INCARNATION = 1_000_000_000
"""Of the scheduler, which tells of streams that broke and of probes: the largest that readers take."""
