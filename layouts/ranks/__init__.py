"""What ranks agree on without talking: levels, shares of what is left, numbers of groups."""
