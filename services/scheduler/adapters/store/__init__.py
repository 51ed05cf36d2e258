"""What the scheduler keeps in PostgreSQL, and the lease that fences it."""
