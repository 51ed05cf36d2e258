"""The local stack: real Kafka, real PostgreSQL and the services as processes, without containers.

:class:`~evenkeel.stack.stack.Stack` starts and stops all of it; :mod:`evenkeel.stack.state` lets another shell find it
again. Nothing of it outlives its owner: a watchdog process stops what is left when the owner dies in any way.
"""
