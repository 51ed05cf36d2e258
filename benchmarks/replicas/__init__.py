"""What replicas cost, and how fast they go on."""
