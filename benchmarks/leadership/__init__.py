"""Who is in charge of the fleet, and how many can register at once."""
