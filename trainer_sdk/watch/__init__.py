"""A process's part of a watched job: who it is, what it measures, and that nothing of it ends the training."""
