"""What an iteration of a series should take: after restarts, and by the clock."""
