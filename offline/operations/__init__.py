"""Recordings of operations, and frames made of them."""
