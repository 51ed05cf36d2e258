"""What work should take: seconds from tokens and lengths."""
