"""Questions to the planner and its answers as JSON documents."""
