"""The scenario that ``make demo`` runs, its live view and its report.

The demo is an outside user: it injects failures into a real job, watches the public topics and the SQL history, and
judges what it saw. It repairs nothing.

- what was seen, and what was really done: :mod:`evenkeel.demo.observed`
- what is done, and when a step is over: :mod:`evenkeel.demo.script`
- what follows and is shown: :mod:`evenkeel.demo.live`, :mod:`evenkeel.demo.report`
"""
