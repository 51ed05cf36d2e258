"""``python -m services.scheduler``: the scheduler as a process."""

import sys

from services.scheduler.main import main

sys.exit(main())
