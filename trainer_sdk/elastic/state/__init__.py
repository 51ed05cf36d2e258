"""Who holds which slice, and how slices get to where the next layout wants them."""
