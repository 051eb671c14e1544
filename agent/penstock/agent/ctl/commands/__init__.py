"""The commands, by the sections of ``agentctl --help``; a module is imported when its command runs."""
