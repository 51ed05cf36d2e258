"""Recordings of jobs that ran, and what the detector says of them."""
