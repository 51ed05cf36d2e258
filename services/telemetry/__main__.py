"""``python -m evenkeel.services.telemetry``."""

import sys

from evenkeel.services.telemetry.main import main

sys.exit(main())
