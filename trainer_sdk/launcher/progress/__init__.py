"""What the person at the terminal sees of a run."""
