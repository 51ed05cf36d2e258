"""What measures models of other frameworks: one file each, found by :mod:`.registry`."""
