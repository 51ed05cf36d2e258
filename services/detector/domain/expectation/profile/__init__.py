"""What a job's iterations are made of: the numbers that a planner prices layouts with."""
