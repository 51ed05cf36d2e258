"""``python -m evenkeel.services.telemetry``."""

from evenkeel.contracts.interrupts import ending_on_interrupt

with ending_on_interrupt():
    from evenkeel.services.common.lifecycle import leave
    from evenkeel.services.telemetry.main import main

leave(main())
