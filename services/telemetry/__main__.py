"""``python -m evenkeel.services.telemetry``."""

from evenkeel.services.common.lifecycle import leave
from evenkeel.services.telemetry.main import main

leave(main())
