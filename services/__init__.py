"""The fleet service's three processes and the plumbing they share. They meet in Kafka, PostgreSQL and gRPC only."""
