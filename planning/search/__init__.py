"""The search for the best plan, and the answer that it gives."""
