"""Systems that stop and start again."""
