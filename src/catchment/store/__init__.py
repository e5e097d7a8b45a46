"""The durable log: its contract, its implementations, and its way into the lake."""
