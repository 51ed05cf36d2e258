"""The planner of tests that are not about its process."""

import asyncio

from evenkeel.planning.search.solver import solve
from evenkeel.planning.situation import Situation
from evenkeel.planning.solution import Solution


class PlannerInThread:
    """The same answers, out of this process."""

    async def solve(self, situation: Situation, *, is_urgent: bool = False) -> Solution:
        return await asyncio.to_thread(solve, situation)
