"""Plans made better step by step: cuts, places and orders."""
