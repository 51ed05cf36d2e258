"""Questions to the planner as JSON documents: what ``evenkeel plan`` reads."""
