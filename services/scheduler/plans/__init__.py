"""What becomes of a plan: whether it pays, what it brought, what is expected next. Pure."""
