"""The Admin service: one line a call, and who may make it."""
