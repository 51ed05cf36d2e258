"""``python -m evenkeel.services.scheduler``: the scheduler as a process."""

from evenkeel.contracts.interrupts import ending_on_interrupt

with ending_on_interrupt():
    from evenkeel.services.common.lifecycle import leave
    from evenkeel.services.scheduler.main import main

leave(main())
