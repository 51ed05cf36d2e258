"""Jobs and fleets that do not exist, with the telemetry of ones that do.

A trace is executed operation by operation over the same layouts and schedules as the engine, with document lengths
drawn from a real histogram and noise resampled from real runs, so that a detector cannot be flattered by it. Nothing
here measures hardware: every number that comes from the simulator is called simulated.
"""
