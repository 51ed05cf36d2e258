"""Recorded topics, and observations made of them."""
