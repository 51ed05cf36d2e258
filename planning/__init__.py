"""Pure planning: what a layout costs, which layouts can be had, which is best, and whether going there pays."""
