"""What a live job loses when ranks and services fail, cell by cell."""
