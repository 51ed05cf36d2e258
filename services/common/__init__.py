"""Plumbing that every service shares: settings, Kafka, lifecycle, metrics, health, database. No business word."""
