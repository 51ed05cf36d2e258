"""``python -m evenkeel.demo``."""

from evenkeel.demo.main import main

raise SystemExit(main())
