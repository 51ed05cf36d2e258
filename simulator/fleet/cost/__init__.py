"""What an iteration, a change of layout and the building of groups take."""
