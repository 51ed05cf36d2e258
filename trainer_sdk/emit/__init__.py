"""The emit path: what the training thread leaves behind, a background thread carries to Kafka. It never blocks."""
