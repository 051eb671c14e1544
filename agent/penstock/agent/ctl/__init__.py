"""The command ``agentctl``."""
