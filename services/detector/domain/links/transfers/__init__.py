"""How long transfers took, from what both of their ends tell, and what they should take."""
