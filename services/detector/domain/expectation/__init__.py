"""What work should take: seconds from tokens and lengths, after restarts, and by the clock."""
