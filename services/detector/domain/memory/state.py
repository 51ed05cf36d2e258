"""What of a stateful object is its state: every field of its dataclass, but for those that are marked here.

Fields are numbers, texts, arrays, collections of these, and further dataclasses; what walks them is an adapter.
"""

from dataclasses import fields
from typing import Any

GIVEN = {"kept": False}
"""Marks a field that whoever makes the object gives it: a setting, not a state."""

DERIVED = {"kept": False}
"""Marks a field that is worked out again from the others, or from what comes next."""


def kept_fields(kind: Any) -> tuple[str, ...]:
    """Names of the fields of a dataclass that are its state."""
    return tuple(each.name for each in fields(kind) if each.metadata.get("kept", True))
