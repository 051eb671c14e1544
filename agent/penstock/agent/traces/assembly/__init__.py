"""From the journal to finished requests: what belongs together, when it is complete, what is sampled."""
