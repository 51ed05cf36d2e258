"""Recordings of one row an iteration and rank (``--format iterations``), from anybody's job."""
