"""Widths, splits and quotas, tuned together."""
