"""The scenario that ``make demo`` runs, its live view and its report.

The demo is an outside user: it injects failures into a real job, watches the public topics and the SQL history, and
judges what it saw. It repairs nothing.

- what was seen: :mod:`demo.run_log`, :mod:`demo.decode`, :mod:`demo.recorder`, :mod:`demo.history_facts`
- what was done: :mod:`demo.truths`, :mod:`demo.conditions`, :mod:`demo.scenario`, :mod:`demo.director`
- what follows: :mod:`demo.timeline`, :mod:`demo.summary`, :mod:`demo.expectations` (all pure)
- what is shown: :mod:`demo.live`, :mod:`demo.pictures`, :mod:`demo.report`
"""
