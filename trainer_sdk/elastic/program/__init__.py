"""One epoch of a rank: its groups, and the program of its stages, instruction by instruction."""
