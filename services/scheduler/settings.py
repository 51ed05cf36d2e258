"""Settings of the scheduler."""

from pydantic import Field

from evenkeel.services.common.settings import DatabaseSettings, ServiceSettings
from evenkeel.services.scheduler.adapters.api.settings import FleetApiSettings
from evenkeel.services.scheduler.adapters.ranks.tls import RankTlsSettings


class SchedulerSettings(ServiceSettings, DatabaseSettings, FleetApiSettings, RankTlsSettings):
    """All of them; see the base classes for the rest."""

    plan_horizon_seconds: float = Field(
        default=600.0,
        gt=0.0,
        le=1e7,
        description="how long a plan is expected to be of use; a longer horizon makes more plans pay",
        examples=["600"],
    )
    plan_min_gain: float = Field(
        default=0.02,
        ge=0.0,
        lt=1.0,
        description="smallest relative gain per iteration that is worth a new epoch",
        examples=["0.02"],
    )
    start_deadline_seconds: float = Field(
        default=120.0,
        gt=0.0,
        le=1e6,
        description="how long the first of a job's processes may take to register; then the job counts as stuck",
        examples=["120"],
    )
    plan_deadline_seconds: float = Field(
        default=10.0,
        gt=0.0,
        le=3600.0,
        description="how much of a processor the planner may take for an answer, then it is begun anew; after a death "
        "those that are left wait no longer than that by the clock, then go on as they are until it answers",
        examples=["10"],
    )
    plan_group_seconds: float = Field(
        default=0.1, ge=0.0, le=600.0, description="time to build an epoch's process groups", examples=["0.1"]
    )
    plan_bytes_per_second: float = Field(
        default=2e8, gt=0.0, description="rate at which one rank receives parameters", examples=["2e8"]
    )
