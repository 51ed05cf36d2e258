"""Keeps each job's layout and each device's throughput, solves plans, dispatches them, records what happened."""
