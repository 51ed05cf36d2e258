"""Alembic's folder: run by :mod:`history.migrate`, and by nothing else."""
