"""Policies: manifest, store, distribution to engines; five rooms below."""
