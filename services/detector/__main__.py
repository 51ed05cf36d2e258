"""``python -m evenkeel.services.detector``."""

from evenkeel.services.common.lifecycle import leave
from evenkeel.services.detector.main import main

leave(main())
