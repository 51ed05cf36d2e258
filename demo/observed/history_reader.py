"""Reads the SQL history of the run the way any auditor would: plain SQL over the documented views. Blocking."""

import time
from collections.abc import Sequence
from typing import Any, LiteralString

import psycopg

from evenkeel.demo.observed.observations import HistoryFacts, QueryResult, RollupWindow
from evenkeel.demo.observed.run_log import Decided
from evenkeel.history.vocabulary import PlanState

CONNECT_TIMEOUT_SECONDS = 5
POLL_SECONDS = 0.2

QUESTIONS: tuple[tuple[str, LiteralString], ...] = (
    (
        "What happened to the job, in order",
        (
            "SELECT to_char(at, 'HH24:MI:SS.MS') AS at, what, subject, detail\n"
            "FROM job_timeline(%(job)s, '-infinity', 'infinity')"
        ),
    ),
    (
        "Failures by node, kind and week",
        (
            "SELECT week, node, kind, incidents, jobs, round(lost_seconds::numeric, 2) AS lost_seconds\n"
            "FROM failures_by_node_week ORDER BY week, node, kind"
        ),
    ),
    (
        "Time lost per incident",
        (
            "SELECT kind, ranks, to_char(opened_at, 'HH24:MI:SS.MS') AS opened_at,\n"
            "       round(open_seconds::numeric, 2) AS open_seconds, round(lost_seconds::numeric, 2) AS lost_seconds\n"
            "FROM lost_time_by_incident WHERE job_id = %(job)s ORDER BY opened_at"
        ),
    ),
    (
        "Time lost per job",
        (
            "SELECT job_id, incidents, open_incidents, round(lost_seconds::numeric, 2) AS lost_seconds,\n"
            "       round(run_seconds::numeric, 1) AS run_seconds, round(lost_part::numeric, 4) AS lost_part\n"
            "FROM lost_time_by_job"
        ),
    ),
    (
        "Plans: predicted against measured",
        (
            "SELECT levers, mode, round(predicted_seconds::numeric, 3) AS predicted_seconds,\n"
            "       round(measured_seconds::numeric, 3) AS measured_seconds,\n"
            "       round(prediction_error::numeric, 3) AS prediction_error,\n"
            "       round(apply_seconds::numeric, 3) AS apply_seconds,\n"
            "       round(proportional_bound::numeric, 3) AS proportional_bound\n"
            "FROM plan_accuracy WHERE job_id = %(job)s ORDER BY proposed_at"
        ),
    ),
    (
        "Time between failures",
        (
            "SELECT node, kind, to_char(opened_at, 'HH24:MI:SS.MS') AS opened_at,\n"
            "       round(seconds_since_previous::numeric, 1) AS seconds_since_previous\n"
            "FROM time_between_failures ORDER BY node, opened_at"
        ),
    ),
    (
        "Processes of each rank, and what ended them",
        (
            "SELECT rank, incarnation, node, device, ended_by, replaced_by,\n"
            "       round(seconds_to_replacement::numeric, 2) AS seconds_to_replacement\n"
            "FROM rank_incarnations WHERE job_id = %(job)s ORDER BY rank, incarnation"
        ),
    ),
)


def read_history(
    database_url: str,
    job_id: str,
    *,
    processes: frozenset[tuple[int, int, int]],
    last_iteration: int,
    until: float,
    wait_seconds: float,
) -> HistoryFacts:
    """What SQL holds of a job, read once rollups reach ``last_iteration`` or ``wait_seconds`` have passed.

    Rollups are waited for from each of ``processes``: rank, incarnation and epoch of those that ran the last iteration.

    Verdicts and plan states count up to ``until`` (Unix seconds): when the script ended.

    Raises:
        psycopg.Error: PostgreSQL does not answer, or a view is missing.
    """
    deadline = time.monotonic() + wait_seconds
    with psycopg.connect(database_url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_SECONDS) as connection:
        rollups = _rollups(connection, job_id)
        while not _reaches(rollups, processes, last_iteration) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            rollups = _rollups(connection, job_id)
        verdict_ids, plan_states = _decided(connection, job_id, until)
        return HistoryFacts(
            rollups=rollups,
            verdict_ids=verdict_ids,
            plan_states=plan_states,
            until=until,
            queries=tuple(_ask(connection, title, sql, job_id) for title, sql in QUESTIONS),
        )


def read_decided(database_url: str, job_id: str, until: float) -> Decided:
    """Verdicts of a job and states of its plans up to ``until`` (Unix seconds), as SQL holds them now.

    Raises:
        psycopg.Error: PostgreSQL does not answer.
    """
    with psycopg.connect(database_url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_SECONDS) as connection:
        return _decided(connection, job_id, until)


def _decided(connection: psycopg.Connection[tuple[Any, ...]], job_id: str, until: float) -> Decided:
    verdicts = connection.execute(
        "SELECT verdict_id FROM verdicts WHERE job_id = %s AND decided_at <= to_timestamp(%s)", (job_id, until)
    ).fetchall()
    plans = connection.execute(
        "SELECT plan_id, state FROM plan_events JOIN plans USING (plan_id) "
        "WHERE job_id = %s AND at <= to_timestamp(%s)",
        (job_id, until),
    ).fetchall()
    return (
        frozenset(verdict_id for (verdict_id,) in verdicts),
        frozenset((plan_id, PlanState(state)) for plan_id, state in plans),
    )


def _rollups(connection: psycopg.Connection[tuple[Any, ...]], job_id: str) -> tuple[RollupWindow, ...]:
    rows = connection.execute(
        "SELECT rank, incarnation, epoch, first_iteration, stop_iteration, num_iterations "
        "FROM rank_rollups WHERE job_id = %s ORDER BY rank, incarnation, epoch, first_iteration",
        (job_id,),
    ).fetchall()
    return tuple(
        RollupWindow(
            rank=rank,
            incarnation=incarnation,
            epoch=epoch,
            first_iteration=first,
            stop_iteration=stop,
            num_iterations=count,
        )
        for rank, incarnation, epoch, first, stop, count in rows
    )


def _reaches(rollups: Sequence[RollupWindow], processes: frozenset[tuple[int, int, int]], last_iteration: int) -> bool:
    """Whether every process has a rollup that holds ``last_iteration``; a window of an older epoch may only span it."""
    found = {(one.rank, one.incarnation, one.epoch) for one in rollups if one.stop_iteration > last_iteration}
    return processes <= found


def _ask(connection: psycopg.Connection[tuple[Any, ...]], title: str, sql: LiteralString, job_id: str) -> QueryResult:
    cursor = connection.execute(sql, {"job": job_id})
    columns = tuple(column.name for column in cursor.description or ())
    rows = tuple(tuple("" if value is None else str(value) for value in row) for row in cursor.fetchall())
    return QueryResult(title=title, sql=sql.replace("%(job)s", f"'{job_id}'"), columns=columns, rows=rows)
