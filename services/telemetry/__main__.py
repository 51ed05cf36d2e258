"""``python -m services.telemetry``."""

import sys

from services.telemetry.main import main

sys.exit(main())
