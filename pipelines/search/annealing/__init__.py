"""Plans annealed: random changes, accepted by the soft maximum of their paths."""
