"""The local PostgreSQL and its databases."""
