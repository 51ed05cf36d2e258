"""docs/sql.md promises that its queries run and give what it shows."""

import psycopg
import pytest

from tests.integration.history.sql_page import PAGE, run, sql_blocks

pytestmark = pytest.mark.integration

VIEWS = """
    SELECT table_name FROM information_schema.views WHERE table_schema = current_schema() ORDER BY table_name
"""


def test_every_query_of_the_page_gives_the_output_shown(owner: psycopg.Connection[tuple[object, ...]]) -> None:
    blocks = list(sql_blocks(PAGE.read_text()))

    assert len(blocks) >= 12
    for block in blocks:
        assert block.output, f"docs/sql.md line {block.line}: no output shown"
        assert run(owner, block.query) == block.output, f"docs/sql.md line {block.line}"


def test_every_view_is_on_the_page(owner: psycopg.Connection[tuple[object, ...]]) -> None:
    page = PAGE.read_text()
    internal = {"incident_nodes"}

    missing = [str(name) for (name,) in owner.execute(VIEWS) if f"`{name}`" not in page and name not in internal]

    assert missing == []


def test_every_query_of_the_page_runs_for_a_reader(owner: psycopg.Connection[tuple[object, ...]]) -> None:
    owner.execute("SET ROLE evenkeel_reader")

    for block in sql_blocks(PAGE.read_text()):
        assert len(run(owner, block.query).splitlines()) >= 2
