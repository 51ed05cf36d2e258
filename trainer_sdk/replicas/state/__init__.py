"""The training state of a replica, and how a newcomer gets it while the others train."""
