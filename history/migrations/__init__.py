"""Alembic's folder: run by :mod:`evenkeel.history.migrate`, and by nothing else.

There is no way back from a migration: history is not taken back, but restored from a backup.
"""
