"""What the scheduler knows of a job, and how that changes: pure."""
