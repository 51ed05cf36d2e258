"""How what is remembered is kept: fields that are state, and the newest so many numbers."""
