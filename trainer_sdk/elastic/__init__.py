"""A hybrid-parallel training engine (tensor x pipeline x data) that can be reshaped in place with exact state."""
