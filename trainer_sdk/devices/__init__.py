"""What a rank computes on: real devices, and emulated ones that pace real compute to a stated speed."""
