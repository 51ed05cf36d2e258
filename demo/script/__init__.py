"""What is done in the demo, and what must be seen before the next step."""
