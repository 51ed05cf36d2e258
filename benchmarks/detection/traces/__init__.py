"""Simulated runs with known truth, and the grid of them."""
