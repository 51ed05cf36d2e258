"""The local Kafka: its jars, its Java, one node, its topics."""
