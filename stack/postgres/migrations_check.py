"""Checks that the migrations lead to the tables in the code: ``python -m evenkeel.stack.postgres.migrations_check``.

It starts a PostgreSQL of its own (1 s), because a difference shows only on a migrated database.
"""

import importlib
import sys
import tempfile
from pathlib import Path

from evenkeel.stack.errors import StackError
from evenkeel.stack.paths import checkout_root
from evenkeel.stack.postgres.databases import upgrade_database
from evenkeel.stack.postgres.server import Postgres
from evenkeel.stack.processes.watchdog import Watchdog


def main() -> int:
    """Migrates an empty database and compares; returns the exit status, 1 when something differs."""
    home = checkout_root() / ".stack"
    home.mkdir(exist_ok=True)
    watchdog = Watchdog()
    watchdog.start()
    with tempfile.TemporaryDirectory(dir=home, prefix="migrations-") as folder:
        # PostgreSQL may run as another user, who has to get in.
        Path(folder).chmod(0o755)
        server = Postgres(Path(folder) / "postgres", watchdog)
        try:
            server.start()
            upgrade_database(server.database_url)
            differences = importlib.import_module("evenkeel.history.migrate").drift(server.database_url)
        except StackError as error:
            print(error, file=sys.stderr)
            return 1
        finally:
            server.stop(grace_seconds=0)
            watchdog.stop()
    for difference in differences:
        print(f"not in the migrations: {difference}", file=sys.stderr)
    if differences:
        print("write a migration below history/migrations/versions", file=sys.stderr)
        return 1
    print("migrations: up to date")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
