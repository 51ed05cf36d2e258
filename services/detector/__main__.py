"""``python -m evenkeel.services.detector``."""

from evenkeel.contracts.interrupts import ending_on_interrupt

with ending_on_interrupt():
    from evenkeel.services.common.lifecycle import leave
    from evenkeel.services.detector.main import main

leave(main())
