"""From messages to tables, lines and trees. Pure."""
