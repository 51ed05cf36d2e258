"""``python -m cli`` is ``evenkeel``."""

from cli.main import main

main()
