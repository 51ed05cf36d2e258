"""A scheduler that dies, and the next one."""

from evenkeel.services.scheduler.adapters.store.store import Store
from tests.integration.scheduler.conftest import Scheduler, World, new_scheduler


async def start_again(store: Store, *worlds: World) -> Scheduler:
    """kill -9 of the scheduler of some jobs, and a new one."""
    await worlds[0].scheduler.crash()
    scheduler = new_scheduler(worlds[0].engine, store=store)
    for world in worlds:
        world.scheduler = scheduler
    await scheduler.coordinator.load()
    assert len(scheduler.coordinator._jobs) == len(worlds)
    return scheduler
