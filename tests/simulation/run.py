"""One run of one seed."""

import asyncio
import random as global_random
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any
from unittest import mock

from evenkeel.services.scheduler.adapters.store import lease
from evenkeel.services.scheduler.serving import job_life
from evenkeel.services.scheduler.serving.served_job import ServedJob
from tests.simulation.calls import SimulatedClient
from tests.simulation.faults import Fault, Outcome, Scenario
from tests.simulation.virtual_loop import VirtualLoop
from tests.simulation.world import World


def run(scenario: Scenario, faults: Iterable[Fault]) -> Outcome:
    """One world from beginning to end; the same arguments give the same outcome."""
    global_random.seed(scenario.seed)
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    world = World(scenario, tuple(faults), loop)

    def failed(_: object, said: Mapping[str, Any]) -> None:
        world.broken.append(f"fault: {said.get('exception') or said['message']!r}")

    def job_failed(_: ServedJob, error: Exception, where: str) -> None:
        world.broken.append(f"fault: the work for a job failed at {where}: {error!r}")

    loop.set_exception_handler(failed)
    with ExitStack() as stack:
        # The network and the database end here: what calls ranks over gRPC, and the statements of the lease.
        stack.enter_context(mock.patch.object(job_life, "RankClient", SimulatedClient))
        stack.enter_context(mock.patch.object(lease, "writes", world.leases))
        stack.enter_context(mock.patch.object(ServedJob, "_tell_failure", job_failed))
        try:
            return loop.run_until_complete(world.run())
        finally:
            loop.end()
            asyncio.set_event_loop(None)
            loop.close()
