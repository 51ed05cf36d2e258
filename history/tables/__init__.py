"""Every table of the history, typed. ``Base.metadata`` is what the migrations must add up to (a test compares them)."""

from evenkeel.history.tables.base import Base
from evenkeel.history.tables.control import IntakeOffsetRow, LeaseRow
from evenkeel.history.tables.fleet import (
    DeviceRow,
    JobEventRow,
    JobLayoutRow,
    JobRow,
    JobSeatRow,
    JobSecretRow,
    JobStateRow,
    NodeRow,
    RankExitRow,
    RankMoveRow,
    RankRow,
)
from evenkeel.history.tables.incidents import (
    IncidentCulpritRow,
    IncidentEventRow,
    IncidentRow,
    VerdictCulpritRow,
    VerdictRow,
)
from evenkeel.history.tables.plans import PlanActionRow, PlanAlternativeRow, PlanEventRow, PlanRow
from evenkeel.history.tables.streams import DetectorSnapshotRow, OutboxRow, RankRollupRow, TenantGrantRow

__all__ = [
    "Base",
    "DetectorSnapshotRow",
    "DeviceRow",
    "IncidentCulpritRow",
    "IncidentEventRow",
    "IncidentRow",
    "IntakeOffsetRow",
    "JobEventRow",
    "JobLayoutRow",
    "JobRow",
    "JobSeatRow",
    "JobSecretRow",
    "JobStateRow",
    "LeaseRow",
    "NodeRow",
    "OutboxRow",
    "PlanActionRow",
    "PlanAlternativeRow",
    "PlanEventRow",
    "PlanRow",
    "RankExitRow",
    "RankMoveRow",
    "RankRollupRow",
    "RankRow",
    "TenantGrantRow",
    "VerdictCulpritRow",
    "VerdictRow",
]
