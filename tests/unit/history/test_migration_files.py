import ast
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory

from evenkeel.history.migrations import versions

FOLDER = Path(next(iter(versions.__path__)))
MIGRATIONS = sorted(path for path in FOLDER.glob("v*.py"))
ALLOWED = {"alembic", "datetime", "sqlalchemy"}


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


@pytest.mark.parametrize("path", MIGRATIONS, ids=lambda path: path.stem)
def test_a_migration_imports_no_application_code(path: Path) -> None:
    assert imported(path) <= ALLOWED


def test_the_migrations_form_one_line_that_ends_in_the_newest() -> None:
    links = {}
    for path in MIGRATIONS:
        names = {}
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                names[node.targets[0].id] = node.value
        links[ast.literal_eval(names["revision"])] = ast.literal_eval(names["down_revision"])

    revision = ScriptDirectory(str(FOLDER.parent)).get_current_head()
    line = []
    while revision is not None:
        line.append(revision)
        revision = links[revision]

    assert len(MIGRATIONS) >= 3
    assert sorted(line) == sorted(links)
