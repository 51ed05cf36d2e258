"""``python -m evenkeel.services.scheduler``: the scheduler as a process."""

import sys

from evenkeel.services.scheduler.main import main

sys.exit(main())
