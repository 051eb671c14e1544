"""``agentctl top``: samples of the agent's state (`poll`), what they come to (`view`), lines (`layout`), a terminal (`screen`)."""
