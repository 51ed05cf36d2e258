"""The detector's edges: protobuf, Kafka, PostgreSQL."""
