"""What is asked of devices and links under suspicion, and what the answers show."""
