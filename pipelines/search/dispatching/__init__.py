"""Orders of passes by priority: what a device that is free runs next."""
