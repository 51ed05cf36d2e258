"""What breaks when and where, and when it is noticed."""
