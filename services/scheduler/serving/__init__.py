"""The service around the job machine: one queue and one writer a job, and all that its steps ask for."""
