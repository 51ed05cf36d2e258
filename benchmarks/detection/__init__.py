"""Detectors side by side on the same simulated traces: ours and the published ones, reproduced from their papers."""
