"""Text that people write: YAML with line numbers, durations, label selectors. Pure."""
