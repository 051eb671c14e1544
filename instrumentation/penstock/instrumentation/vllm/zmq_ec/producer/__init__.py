"""Keeps encoder outputs on the host and serves them."""
