"""Alembic's folder: run by :mod:`evenkeel.history.migrate`, and by nothing else."""
