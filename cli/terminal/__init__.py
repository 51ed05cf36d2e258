"""How rows and waiting are shown."""
