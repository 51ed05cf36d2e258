"""Commands that measure: each prints a table and JSON, and compares side by side in one run."""
