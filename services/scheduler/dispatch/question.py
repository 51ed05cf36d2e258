"""What a plan changes, and what its ranks' answers allow. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from evenkeel.history.records import PlanRecord
from evenkeel.history.vocabulary import PlanMode
from evenkeel.layouts.layout import Layout
from evenkeel.layouts.model import ModelSpec
from evenkeel.layouts.rank_state import RankState
from evenkeel.services.scheduler.dispatch.agreement import boundary_decision, recovery_decision
from evenkeel.services.scheduler.dispatch.protocol import Decision, Reshape
from evenkeel.services.scheduler.domain.job_state import JobKnowledge


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a plan changes, and whom it concerns.

    Attributes:
        reshape: The plan.
        model: The job's model.
        epoch: Epoch in force.
        layout: Layout in force.
        layouts: Layout of every decided epoch.
        concerned: Live ranks of the layout in force and of the plan's.
        others: All others with a live process.
    """

    reshape: Reshape
    model: ModelSpec
    epoch: int
    layout: Layout
    layouts: Mapping[int, Layout]
    concerned: frozenset[int]
    others: frozenset[int] = field(default_factory=frozenset)

    def decide(self, states: Mapping[int, RankState]) -> Decision:
        """What the ranks' answers allow.

        Raises:
            NoAgreementError: Nothing.
        """
        to_layout = self.reshape.to_layout
        if self.reshape.mode is PlanMode.BOUNDARY:
            return boundary_decision(states, epoch=self.epoch, layout=self.layout, to_layout=to_layout)
        return recovery_decision(states, layouts=self.layouts, to_layout=to_layout, model=self.model)


def question_of(job: JobKnowledge, plan: PlanRecord, live: frozenset[int], term: int) -> Question:
    """What a plan changes in a job as it is, where these ranks have a live process."""
    concerned = live & {*job.layout.ranks, *plan.layout.ranks}
    reshape = Reshape(
        job_id=job.job_id, plan_id=plan.plan_id, epoch=plan.epoch, mode=plan.mode, to_layout=plan.layout, term=term
    )
    return Question(
        reshape=reshape,
        model=job.model,
        epoch=job.epoch,
        layout=job.layout,
        layouts=job.layouts,
        concerned=concerned,
        others=live - concerned,
    )
