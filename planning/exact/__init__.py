"""The exact search of small jobs: every replica, every layout, and the bound that ends it."""
