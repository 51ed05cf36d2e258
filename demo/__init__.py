"""The scenario that ``make demo`` runs, its live view and its report.

The demo is an outside user: it injects failures into a real job, watches the public topics and the SQL history, and
judges what it saw. It repairs nothing.

- what was seen: :mod:`evenkeel.demo.run_log`, :mod:`evenkeel.demo.decode`, :mod:`evenkeel.demo.recorder`,
  :mod:`evenkeel.demo.history_facts`
- what was done: :mod:`evenkeel.demo.truths`, :mod:`evenkeel.demo.conditions`, :mod:`evenkeel.demo.scenario`,
  :mod:`evenkeel.demo.director`
- what follows: :mod:`evenkeel.demo.timeline`, :mod:`evenkeel.demo.summary`, :mod:`evenkeel.demo.expectations` (all
  pure)
- what is shown: :mod:`evenkeel.demo.live`, :mod:`evenkeel.demo.pictures`, :mod:`evenkeel.demo.report`
"""
