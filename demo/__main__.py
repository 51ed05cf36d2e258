"""``python -m demo``."""

from demo.main import main

raise SystemExit(main())
