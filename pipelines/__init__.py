"""Pipeline plans: which layers form a stage, which device runs it, and in which order each device works.

Pure: no I/O, no clock but the one that a caller passes as a deadline. A :class:`~evenkeel.pipelines.case.Case` states
the task, a :class:`~evenkeel.pipelines.plan.Plan` answers it, :func:`~evenkeel.pipelines.evaluate.evaluate` says what
the answer is worth and :func:`~evenkeel.pipelines.proofs.bounds.lower_bound` what no answer can beat.
:func:`~evenkeel.pipelines.search.generate.generate` finds plans; :mod:`evenkeel.pipelines.schedules`,
:mod:`evenkeel.pipelines.octopipe` and :mod:`evenkeel.pipelines.proofs.exact` are what it is measured against.

Times are in the unit of the case and memory in the unit of its activations: only ratios matter here.
"""
