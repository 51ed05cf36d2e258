"""Reads that services need; people use the views of ``docs/sql.md``."""

from evenkeel.history.reads.incidents import get_incident, list_incidents, list_verdicts
from evenkeel.history.reads.jobs import (
    get_job,
    job_token,
    job_tokens,
    list_jobs,
    registered_processes,
    unfinished_jobs,
)
from evenkeel.history.reads.paging import Page, PageError
from evenkeel.history.reads.plans import get_plan, list_plans
from evenkeel.history.reads.stored_jobs import load_jobs

__all__ = [
    "Page",
    "PageError",
    "get_incident",
    "get_job",
    "get_plan",
    "job_token",
    "job_tokens",
    "list_incidents",
    "list_jobs",
    "list_plans",
    "list_verdicts",
    "load_jobs",
    "registered_processes",
    "unfinished_jobs",
]
