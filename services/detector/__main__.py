"""``python -m services.detector``."""

import sys

from services.detector.main import main

sys.exit(main())
