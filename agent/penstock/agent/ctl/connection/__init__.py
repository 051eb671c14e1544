"""The agent that a command asks: its address, its TLS files, and the calls."""
