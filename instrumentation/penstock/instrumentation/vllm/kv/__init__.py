"""KV connectors on the scheduler side: admission, deadlines, failures, quarantine."""
