"""Commands of the section "Change policies" of ``agentctl --help``."""
