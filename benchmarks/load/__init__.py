"""Load generators, simulated and real engines, and the peers that are compared."""
