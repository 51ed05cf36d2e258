"""Gradient sums: what is in them, how they are reduced, what a failure leaves of them, and the vote on a step."""
