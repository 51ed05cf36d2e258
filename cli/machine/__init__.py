"""Commands of this machine: its stack, its jobs, what it lacks."""
