"""What a recording has wrong, put right before it is asked."""
