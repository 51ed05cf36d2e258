"""The engine on this machine, and what the scheduler's code predicts of it."""
