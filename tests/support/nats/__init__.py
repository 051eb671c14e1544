"""A real nats-server."""
