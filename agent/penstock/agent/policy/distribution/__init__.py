"""Agent -> engine, as in xDS: full state per push, nonce, ACK/NACK, roll-out."""
