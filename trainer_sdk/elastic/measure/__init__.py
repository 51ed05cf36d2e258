"""Where an iteration's time goes, and how fast links are."""
