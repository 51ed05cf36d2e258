"""How loops over numbers become machine code; the loops themselves stay beside the code that they belong to."""
