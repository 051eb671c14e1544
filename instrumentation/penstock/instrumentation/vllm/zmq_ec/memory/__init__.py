"""Slots, the shared region, what memory there is."""
