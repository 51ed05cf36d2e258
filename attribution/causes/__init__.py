"""What can explain a slowdown: a cause a file."""
