"""Links and groups between ranks: which is slower than it was, and whose fault that is."""
