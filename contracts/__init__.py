"""What crosses Kafka: the table of topics and the headers of every record. The messages are in ``protos/``."""
