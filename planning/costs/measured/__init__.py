"""What a job's own iterations say of its costs."""
