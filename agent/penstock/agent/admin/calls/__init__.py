"""The calls of the Admin service, a subject a module."""
