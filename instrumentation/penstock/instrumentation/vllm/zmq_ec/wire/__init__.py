"""The messages, and the bounds of a connection."""
