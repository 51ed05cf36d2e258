"""Where the stack keeps its files: everything below the checkout, so that two checkouts never meet."""

import re
from pathlib import Path

from evenkeel.stack.errors import StackNameError

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,40}")


def checkout_root() -> Path:
    """The checkout that this code runs from; the working directory when it was installed from a wheel."""
    root = Path(__file__).resolve().parent.parent
    return root if (root / "pyproject.toml").is_file() else Path.cwd()


def cache_folder() -> Path:
    """``.cache`` of the checkout: what was fetched, good for any number of stacks."""
    return checkout_root() / ".cache"


def stack_names() -> list[str]:
    """Names of the stacks of this checkout that left word of themselves, running or not."""
    return sorted(path.parent.name for path in (checkout_root() / ".stack").glob("*/state.json"))


def stack_folder(name: str) -> Path:
    """``.stack/<name>`` of the checkout: data, logs and state of one stack.

    Raises:
        StackNameError: The name is not usable as a folder's name.
    """
    if not _NAME.fullmatch(name):
        raise StackNameError(f"stack name {name!r}: use 1-41 of a-z, 0-9, '.', '_', '-', first a letter or digit")
    return checkout_root() / ".stack" / name
