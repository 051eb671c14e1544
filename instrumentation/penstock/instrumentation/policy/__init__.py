"""The way of a push: stream, decode, apply between two steps, ACK."""
