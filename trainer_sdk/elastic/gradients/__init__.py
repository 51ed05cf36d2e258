"""Gradient sums: what is in them, how they are reduced, what is kept of them after a failure, and the vote on a step."""
