"""What the detector knows: pure functions and state, no I/O, no clock but the times in the data."""
