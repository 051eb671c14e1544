"""Commands of the section "Inspect" of ``agentctl --help``: they change nothing."""
