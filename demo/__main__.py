"""``python -m evenkeel.demo``."""

from evenkeel.contracts.interrupts import ending_on_interrupt

with ending_on_interrupt():
    from evenkeel.demo.main import main

raise SystemExit(main())
