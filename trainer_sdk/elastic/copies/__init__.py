"""Copies of a job's state in peers' memory and on disk."""
