"""A received batch, read once: columns for the hot path, rows for everybody else. Pure."""
