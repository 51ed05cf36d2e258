"""Where a search begins: cuts and places of stages, by balance and as published."""
