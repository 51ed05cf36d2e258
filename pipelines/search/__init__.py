"""The generator of pipeline plans: partition, placement and order found together.

:mod:`~pipelines.search.network` states the operations of a partition and placement, :mod:`~pipelines.search.dispatch`
orders them by priorities, :mod:`~pipelines.search.improve` betters the priorities, :mod:`~pipelines.search.assignments`
proposes and changes placements, :mod:`~pipelines.search.climb` and :mod:`~pipelines.search.reheat` better them, and
:mod:`~pipelines.search.generate` runs it all.
"""
