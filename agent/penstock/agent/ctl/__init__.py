"""``agentctl``: entry, options, client."""
