"""NIXL workers, to the bottom of each transfer."""
