"""Levers that change who works where."""
