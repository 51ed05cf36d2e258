"""The scheduler's edges: gRPC, Kafka, SQL."""
