"""What repairs cost a running engine."""
