"""Telemetry: what ranks emit becomes frames, liveness and rollups. See ``docs/telemetry.md``."""
