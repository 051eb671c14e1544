"""Evidence in one file: reading commands on a bundle instead of an agent."""
