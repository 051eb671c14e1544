"""Compares one engine with and without Penstock by switching it on and off in turns."""
