"""The speed-up that costs and acceptance explain."""
