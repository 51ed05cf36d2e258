"""Trainers of other libraries as replicas: a file for each; see docs/on_your_trainer.md."""
