"""Recordings of anybody's training job, read from files: attribution, and the service's own detector run over them."""
