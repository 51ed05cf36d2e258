"""Reads that services need; people use the views of ``docs/sql.md``."""
