import asyncio

import psycopg
import pytest

from evenkeel.demo.observed.history_reader import QUESTIONS, read_history
from evenkeel.history.vocabulary import PlanState
from evenkeel.services.common.postgres.database import create_engine
from tests.integration.history.seed import seed

pytestmark = pytest.mark.integration


@pytest.fixture
def seeded_url(fresh_database_url: str) -> str:
    async def fill() -> None:
        engine = create_engine(fresh_database_url, application_name="test")
        async with engine.begin() as connection:
            await seed(connection)
        await engine.dispose()

    asyncio.run(fill())
    return fresh_database_url


def test_the_history_of_a_job_is_read_back_as_it_was_written(seeded_url: str) -> None:
    facts = read_history(seeded_url, "llama", processes=frozenset(), last_iteration=0, until=4e9, wait_seconds=0.0)
    with psycopg.connect(seeded_url) as connection:
        (num_verdicts,) = connection.execute("SELECT count(*) FROM verdicts WHERE job_id = 'llama'").fetchone() or (0,)
        (num_states,) = connection.execute(
            "SELECT count(*) FROM plan_events JOIN plans USING (plan_id) WHERE job_id = 'llama'"
        ).fetchone() or (0,)
    assert len(facts.verdict_ids) == num_verdicts > 0
    assert len(facts.plan_states) == num_states > 0
    assert PlanState.MEASURED in {state for _, state in facts.plan_states}
    assert facts.rollups
    assert all(0 < each.num_iterations <= each.stop_iteration - each.first_iteration for each in facts.rollups)


def test_every_question_has_an_answer_with_the_sql_that_gave_it(seeded_url: str) -> None:
    facts = read_history(seeded_url, "llama", processes=frozenset(), last_iteration=0, until=4e9, wait_seconds=0.0)
    assert [query.title for query in facts.queries] == [title for title, _ in QUESTIONS]
    assert all(query.rows for query in facts.queries)
    assert all(len(row) == len(query.columns) for query in facts.queries for row in query.rows)
    with psycopg.connect(seeded_url) as connection:
        for query in facts.queries:
            shown = connection.execute(query.sql.encode()).fetchall()
            assert len(shown) == len(query.rows)


def test_what_came_after_the_recording_does_not_count(seeded_url: str) -> None:
    facts = read_history(seeded_url, "llama", processes=frozenset(), last_iteration=0, until=0.0, wait_seconds=0.0)
    assert facts.verdict_ids == frozenset()
    assert facts.plan_states == frozenset()
