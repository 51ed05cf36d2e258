"""Kinds of findings, one a file; each is found by being here: :mod:`evenkeel.services.detector.domain.kinds.board`."""
