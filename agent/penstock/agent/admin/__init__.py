"""The Admin service: one line a call, and its authorization."""
