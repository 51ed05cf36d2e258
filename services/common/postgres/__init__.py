"""PostgreSQL as the services use it: patient, and never without an end to a wait."""
