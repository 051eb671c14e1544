"""``agentctl top``: the live screen."""
