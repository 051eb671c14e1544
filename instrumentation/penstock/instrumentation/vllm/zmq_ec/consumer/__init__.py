"""Fetches them ahead of scheduling."""
