"""agentctl: entry, options, the client."""
