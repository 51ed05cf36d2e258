"""Fleets that do not exist, in real time, for services that do: telemetry into Kafka, plans from the scheduler.

Simulated are devices, iterations and faults. Real are the messages, the topics, the fleet API, and the rank
controllers (the SDK's mailbox and gRPC server), so the services cannot tell such a job from another one by its form.
"""
