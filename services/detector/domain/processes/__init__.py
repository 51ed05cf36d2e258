"""Life and death of a job's processes, and who among them hangs."""
