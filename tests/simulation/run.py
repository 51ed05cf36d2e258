"""One run of one seed."""

import asyncio
import random as global_random
from collections.abc import Iterable, Mapping
from typing import Any

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

    loop.set_exception_handler(failed)
    try:
        return loop.run_until_complete(world.run())
    finally:
        while tasks := asyncio.all_tasks(loop):  # what cleans up may begin another
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
        asyncio.set_event_loop(None)
        loop.close()
