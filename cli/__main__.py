"""``python -m evenkeel.cli`` is ``evenkeel``."""

from evenkeel.cli.main import main

main()
