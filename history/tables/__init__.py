"""Every table of the history, typed. ``Base.metadata`` is what the migrations must add up to (a test compares them)."""

from evenkeel.history.tables import control, fleet, incidents, plans, streams
from evenkeel.history.tables.base import Base

__all__ = ["Base", "control", "fleet", "incidents", "plans", "streams"]
