"""Groups are built beside the work, agreed on by all, and buried without waiting."""
