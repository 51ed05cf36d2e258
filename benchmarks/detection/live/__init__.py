"""Real training loops on this machine, with something wrong in one rank: recorded by the SDK, replayed, and judged."""
