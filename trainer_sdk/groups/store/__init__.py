"""How ranks find one another: the job's store and what becomes of it when it dies."""
