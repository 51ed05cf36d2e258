"""Published systems and ours on the same faults, paper by paper."""
