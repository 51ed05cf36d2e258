"""The generator of pipeline plans: partition, placement and order found together.

:mod:`~evenkeel.pipelines.search.dispatching.network` states the operations of a partition and placement,
:mod:`~evenkeel.pipelines.search.dispatching.dispatch` orders them by priorities,
:mod:`~evenkeel.pipelines.search.climbing.improve` betters the priorities,
:mod:`~evenkeel.pipelines.search.starts.assignments` proposes and changes placements,
:mod:`~evenkeel.pipelines.search.climbing.climb` and :mod:`~evenkeel.pipelines.search.annealing.reheat` better them, and
:mod:`~evenkeel.pipelines.search.generate` runs it all.
"""
