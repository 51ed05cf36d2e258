"""What is simulated, as a file says it."""
