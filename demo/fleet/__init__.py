"""The fleet demo: three agents behind relays, one policy for all, and a roll-out that aborts itself."""
