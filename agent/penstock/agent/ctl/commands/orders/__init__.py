"""Commands of the section "Orders to engines" of ``agentctl --help``."""
