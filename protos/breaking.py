"""Compares the contracts with what others may still speak: ``python protos/breaking.py``; the exit status is buf's.

That is the newest release's tag; without one, the contracts as they were before their last change. Readers and writers
of two neighbouring versions run side by side during every roll-out.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

PROTOS = Path(__file__).resolve().parent
CONTRACTS = "evenkeel"


def git(*arguments: str) -> str | None:
    """What git says; None when it fails."""
    done = subprocess.run(["git", *arguments], cwd=PROTOS, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def base() -> str | None:
    """What to compare with; None where there is no history, as in an unpacked archive."""
    if git("rev-parse", "--verify", "HEAD") is None:
        return None
    release = git("describe", "--tags", "--abbrev=0", "--match", "v[0-9]*")
    if release:
        return release
    if git("diff", "--quiet", "HEAD", "--", CONTRACTS) is None:
        return "HEAD"
    changed = git("log", "-1", "--format=%H", "--", CONTRACTS)
    # A shallow clone may end at the change itself: then there is nothing older to compare with.
    return git("rev-parse", "--verify", "--quiet", f"{changed}^") or "HEAD"


def main() -> int:
    """Runs buf; returns its exit status."""
    against = base()
    if against is None:
        print("buf breaking: left out, this folder has no git history")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", against, "."], cwd=PROTOS, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        status = subprocess.run(["buf", "breaking", "--against", folder], cwd=PROTOS, check=False).returncode
    print(f"buf breaking: {'compatible' if status == 0 else 'NOT compatible'} with {against[:12]}")
    return status


if __name__ == "__main__":
    sys.exit(main())
