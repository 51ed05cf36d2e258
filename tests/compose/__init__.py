"""docker-compose.yml brought up for real; not part of ``make test``."""
