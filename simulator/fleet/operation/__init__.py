"""How a job runs at a moment, and how long its iterations are then."""
