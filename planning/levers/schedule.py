"""Lever: schedule. The same stages and quotas, in another order of passes.

1F1B leaves a stage idle while the pipeline fills and drains. A schedule with a split backward sends the input's
gradient on first and does the weights' part in those gaps, so a replica with few micro-batches or a slow stage ends
sooner. It costs memory: activations stay until the weights' part. Nothing moves, but everybody builds the groups of an
epoch anew. Offered only to jobs whose first layout names the schedules that their engine runs.
"""

from dataclasses import replace

from evenkeel.layouts.layout import Layout
from evenkeel.planning.levers.lever import Asked, Lever


class Schedule(Lever):
    """Another pipeline schedule that the job's engine runs."""

    name = "schedule"
    asked = Asked.SCHEDULE, 0

    def undone(self, before: Layout, after: Layout) -> Layout:
        """The same stages and quotas under the schedule as it was."""
        return replace(after, schedule=before.schedule)

    def describe(self, before: Layout, after: Layout) -> str:
        """Schedule before and after."""
        return "" if before.schedule == after.schedule else f"schedule {after.schedule} (was {before.schedule})"
