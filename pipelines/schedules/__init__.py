"""The published schedules, each one function from a case to a plan: what the generator is measured against.

They take the layers as they come (about the same number for each stage, the first stages take the remainder) unless a
partition is given, and know nothing of unequal costs: that is what the generator is for.
"""
