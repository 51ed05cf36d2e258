"""Pipeline plans: which layers form a stage, which device runs it, and in which order each device works.

Pure: no I/O, no clock but the one that a caller passes as a deadline. A :class:`~pipelines.case.Case` states the task,
a :class:`~pipelines.plan.Plan` answers it, :func:`~pipelines.evaluate.evaluate` says what the answer is worth and
:func:`~pipelines.bounds.lower_bound` what no answer can beat. :func:`~pipelines.search.generate.generate` finds plans;
:mod:`pipelines.schedules`, :mod:`pipelines.octopipe` and :mod:`pipelines.exact` are what it is measured against.

Times are in the unit of the case and memory in the unit of its activations: only ratios matter here.
"""
