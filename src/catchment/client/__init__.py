"""Async clients on the same wire and crypto code as the node."""
