"""``python -m evenkeel.services.detector``."""

import sys

from evenkeel.services.detector.main import main

sys.exit(main())
