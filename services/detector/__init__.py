"""The detector: observations of a job in, verdicts and profiles out.

``domain`` is pure and deterministic; ``adapters`` speak protobuf, Kafka and PostgreSQL; ``main`` puts them together.
"""
