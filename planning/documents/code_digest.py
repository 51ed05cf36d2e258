"""Which code plans: records go between two processes as they are, so both must be of the same."""

from hashlib import sha256
from pathlib import Path

import evenkeel.layouts
import evenkeel.planning


def code_digest() -> str:
    """Of the files that make questions and answers, as they are on disk now, in hexadecimal digits; reads them all."""
    digest = sha256()
    for package in (evenkeel.layouts, evenkeel.planning):
        for path in sorted(Path(package.__path__[0]).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()
