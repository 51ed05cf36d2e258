"""Operations of a step, what waits for what, and what it would take with other durations."""
