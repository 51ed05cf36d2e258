"""The generator of pipeline plans: partition, placement and order found together.

:mod:`~evenkeel.pipelines.search.network` states the operations of a partition and placement,
:mod:`~evenkeel.pipelines.search.dispatch`
orders them by priorities, :mod:`~evenkeel.pipelines.search.improve` betters the priorities,
:mod:`~evenkeel.pipelines.search.assignments`
proposes and changes placements, :mod:`~evenkeel.pipelines.search.climb` and :mod:`~evenkeel.pipelines.search.reheat`
better them, and :mod:`~evenkeel.pipelines.search.generate` runs it all.
"""
