"""Which replicas are in the job, and who decides it."""
