"""What a job is, as written down, and where a run of it is kept."""
