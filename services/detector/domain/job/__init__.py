"""One job's detector: the flow from a frame to what is told, in one place."""
