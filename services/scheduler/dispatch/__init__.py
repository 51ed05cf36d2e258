"""How a plan reaches the ranks: two phases over gRPC."""
