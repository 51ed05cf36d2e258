"""The fleet's memory in PostgreSQL: its schema by migrations, append-only writes, and the reads that services need.

Callers hold the transaction: every function of :mod:`evenkeel.history.writes` and :mod:`evenkeel.history.reads` takes
an open ``AsyncConnection`` and never commits. People read through the views of ``docs/sql.md``.
"""
