"""Writes the pages of docs/ that are made from code: ``python -m evenkeel.cli.pages``; ``--check`` only compares."""

import argparse
import sys

from evenkeel.cli.pages import metrics, settings, topics
from evenkeel.stack.paths import checkout_root


def main() -> int:
    """Writes the pages, or compares with ``--check``; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare with the committed pages")
    check_only = parser.parse_args().check
    status = 0
    for name, page in {"metrics": metrics.page, "settings": settings.page, "topics": topics.page}.items():
        path = checkout_root() / "docs" / f"{name}.md"
        if not check_only:
            path.write_text(page())
        elif not path.is_file() or path.read_text() != page():
            print(f"stale: docs/{name}.md; run: make generate", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    raise SystemExit(main())
