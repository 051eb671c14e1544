"""Policies: manifest, store, files, orders, and distribution to engines."""
