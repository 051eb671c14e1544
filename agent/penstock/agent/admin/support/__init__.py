"""What the calls stand on: the context, the messages, and look-ups that several share."""
