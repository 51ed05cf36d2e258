"""Calls to the ranks of jobs, and what they tell."""
