"""What measures links: its clock must be right, so that it runs apart from the engine's other tests."""

from tests.integration.elastic.conftest import start_fleet

__all__ = ["start_fleet"]
