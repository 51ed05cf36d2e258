"""The edges: records in, observations out, rollups into PostgreSQL, and finding one's place after a restart."""
