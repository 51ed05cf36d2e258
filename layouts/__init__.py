"""The shared vocabulary of engine, planner, detector and simulator: pure, no I/O, no dependencies.

A :class:`~evenkeel.layouts.layout.Layout` says which rank holds which position; :mod:`evenkeel.layouts.cut` says which
slice of a tensor a shard holds; :mod:`evenkeel.layouts.programs.instructions` and
:mod:`evenkeel.layouts.programs.schedules` say in which order a stage works; :mod:`evenkeel.layouts.model` says what a
block of the model costs; :mod:`evenkeel.layouts.codec` carries all of it over the wire.
"""
