"""The planner by itself: its time, its optimum, its pipelines."""
