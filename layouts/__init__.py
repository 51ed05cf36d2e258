"""The shared vocabulary of engine, planner, detector and simulator: pure, no I/O, no dependencies.

A :class:`~layouts.layout.Layout` says which rank holds which position; :mod:`layouts.cut` says which slice of a tensor
a shard holds; :mod:`layouts.instructions` and :mod:`layouts.schedules` say in which order a stage works;
:mod:`layouts.model` says what a block of the model costs; :mod:`layouts.codec` carries all of it over the wire.
"""
