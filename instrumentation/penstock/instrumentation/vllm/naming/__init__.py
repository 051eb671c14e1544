"""How vLLM's engines, peers and failures are called on the wire."""
