"""All ranks' samples of one iteration, as arrays."""
